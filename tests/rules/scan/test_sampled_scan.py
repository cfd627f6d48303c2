"""A long log is read in part, with the same conclusions as from all of it."""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from smallruns import FAILED

from stallwatch_rules.failures.environment import versions_in
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.scan.patterns import WATCHES, scan_engine
from stallwatch_rules.scan.sampled import ScanEngine, ScanSizes
from stallwatch_rules.scan.sources import SourceReading

RECORDINGS = Path(__file__).parents[2] / "recordings"

#: So small that even a few hundred lines are read in part only.
SMALL = ScanSizes(
    chunk=4096,
    head=1024,
    head_segments=8,
    tail=8192,
    section=16,
    dense=4,
    probe=512,
    rule_lines=3,
    known_windows=1,
    novel_windows=2,
    contexts=2,
    templates=8,
    torn_tracebacks=2,
)


class Engine(NamedTuple):
    catalogue: Catalogue
    matcher: Matcher
    sieve: ScanEngine

    def __repr__(self) -> str:
        return "engine"


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue, matcher: Matcher) -> Engine:
    sieve = scan_engine(matcher)
    if sieve is None:
        pytest.skip("hyperscan has no wheel for this platform")
    return Engine(catalogue, matcher, sieve)


def read(
    engine: Engine,
    sources: dict[str, bytes],
    sizes: ScanSizes | None = SMALL,
    cuts: Iterable[int] = (),
) -> tuple[RunReading, int, int]:
    """The reading, the number of lines, and how many were read; without sizes all of them."""
    reading = RunReading(engine.catalogue, engine.matcher)
    fed = [0]
    feed = reading.feed

    def counting(lines, asides=()):  # type: ignore[no-untyped-def]
        fed[0] += len(lines)
        return feed(lines, asides)

    reading.feed = counting  # type: ignore[method-assign]
    count = 0
    for name, data in sources.items():
        rank = int(name[4:-4]) if name.startswith("rank") else None
        source = SourceReading(
            reading, LineReader(name, rank), lambda: engine.sieve if sizes else None, sizes or ScanSizes()
        )
        marks = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        for start, end in pairwise(marks):
            source.feed(data[start:end])
        source.finish()
        count += source.lines
    return reading, fed[0], count


def outcome(diagnosis: Diagnosis) -> tuple[object, ...]:
    primary = diagnosis.primary
    return (
        diagnosis.verdict,
        primary and (primary.rule, primary.line, primary.rank),
        sorted(
            (finding.rule, finding.harm, finding.role, finding.count, tuple(finding.ranks))
            for finding in diagnosis.findings
        ),
        diagnosis.progress.last_step,
        diagnosis.progress.finished,
    )


# ---- logs made for the test

FAULTS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.10 GiB of which 1.20 GiB is free.",
    "OSError: [Errno 28] No space left on device: '/data/out/pytorch_model.bin'",
    "[rank1]:[E ProcessGroupNCCL.cpp:828] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800123 milliseconds",
    "Fatal Python error: Segmentation fault",
)
NOTICES = (
    "Invalidate trace cache @ step 12: expected module 7, but got module 3",
    "[2026-05-02 09:00:00,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
    "Skipping step. Attempted loss scale: 65536, reducing to 32768",
)
CHATTER = (
    "loaded shard {n} of the data in {n} ms",
    "/opt/lib/train.py:{n}: UserWarning: this call is deprecated and slow",
    "gpu-node-003:{n}:{n} [0] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P/IPC",
    "saved metrics batch {n} to /out/metrics/{n:08x}.json",
)


def metric(form: int, step: int, clock: str) -> str:
    if form == 0:
        return f"{{'loss': {2 / (1 + step):.4f}, 'grad_norm': 1.0, 'epoch': {step / 50:.2f}}}"
    if form == 1:
        return f"{clock} step {step}/90000 loss {2 / (1 + step):.4f}"
    return (
        f"\r {step // 900:3d}%|##        | {step}/90000 [{step // 60:02d}:{step % 60:02d}<09:10,  1.00s/it]"
    )


def traceback(error: str, depth: int) -> list[str]:
    frames = []
    for level in range(depth):
        frames += [
            f'  File "/home/ada/part{level}.py", line {level + 3}, in step',
            "    return self.inner(x)",
        ]
    return ["Traceback (most recent call last):", *frames, error]


class Recipe(NamedTuple):
    """A log of some hundred steps with random events of a run."""

    seed: int
    form: int  #: of its metrics
    steps: int
    notices: float  #: a step
    faults: tuple[int, ...]
    ends: str


recipes = st.builds(
    Recipe,
    seed=st.integers(0, 2**32),
    form=st.integers(0, 2),
    steps=st.integers(100, 700),
    notices=st.sampled_from((0.0, 0.02, 0.5)),
    faults=st.lists(st.integers(0, 3), max_size=5).map(tuple),
    ends=st.sampled_from(("", "fault", "unknown", "killed")),
)


def log_of(recipe: Recipe) -> bytes:
    """The same recipe always gives the same log."""
    rng = random.Random(recipe.seed)
    form, steps, frequent, ends = recipe.form, recipe.steps, recipe.notices, recipe.ends
    events = {rng.randrange(steps): fault for fault in recipe.faults}
    lines: list[str] = []
    for step in range(1, steps + 1):
        clock = f"[2026-05-02 {9 + step // 3600:02d}:{step // 60 % 60:02d}:{step % 60:02d},000] [INFO]"
        lines.append(metric(form, step, clock))
        lines += [rng.choice(CHATTER).format(n=rng.randrange(10_000)) for _ in range(rng.randrange(4))]
        if rng.random() < frequent:
            lines.append(NOTICES[step % 2 if frequent < 0.1 else 0])
        if step in events:
            lines += traceback(FAULTS[events[step]], rng.randrange(2, 9))
    if ends == "fault":
        lines += traceback(FAULTS[0], 5)
    elif ends == "unknown":
        lines += traceback("ValueError: nobody knows this one", 5)
    elif ends == "killed":
        lines += ["Killed"]
    return ("\n".join(lines) + "\n").encode()


# Seeds do not shrink to anything smaller.
quick = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


#: Notices that are counted in bulk: whether they recur to the end must not depend on the few that are read.
COUNTED_NOTICES = Recipe(seed=600, form=1, steps=344, notices=0.02, faults=(3, 0, 2, 0, 2), ends="")


@quick
@example(recipe=COUNTED_NOTICES)
@example(recipe=COUNTED_NOTICES._replace(ends="fault"))
@given(recipe=recipes)
def test_sampled_log_gives_the_same_diagnosis(engine: Engine, recipe: Recipe) -> None:
    log = log_of(recipe)
    whole, _, lines = read(engine, {"rank0.log": log}, None)
    sieved, _, same_lines = read(engine, {"rank0.log": log})
    assert same_lines == lines
    assert outcome(sieved.diagnose()) == outcome(whole.diagnose())


#: Colours inside of what the patterns look for.
COLOURED = {
    "trace cache": "trace \x1b[33mcache\x1b[0m",
    "OVERFLOW!": "OVERFLOW\x1b[0m!",
    "out of memory": "out \x1b[1;31mof\x1b[0m memory",
    "Errno 28": "Errno \x1b[1m28\x1b[0m",
    "collective operation": "collective \x1b[31moperation\x1b[0m",
}


@pytest.mark.parametrize("seed", range(3))
def test_escaped_color_codes_do_not_hide_matches(engine: Engine, seed: int) -> None:
    log = log_of(Recipe(seed, form=1, steps=500, notices=0.5, faults=(0, 1, 0, 2, 0), ends="")).decode()
    for plain, coloured in COLOURED.items():
        log = log.replace(plain, coloured)
    end = {"stream": "stderr", "time": "2026-05-02T09:00:00.000000001Z"}
    records = [json.dumps({"log": line + "\n", **end}, separators=(",", ":")) for line in log.splitlines()]
    data = "\n".join([*records, ""]).encode()
    assert b"\\u001b[" in data
    whole, _, _ = read(engine, {"rank0.log": data}, None)
    sieved, _, _ = read(engine, {"rank0.log": data})
    assert outcome(sieved.diagnose()) == outcome(whole.diagnose())
    assert {finding.rule: finding.count for finding in rendered(whole.diagnose()).findings}["cuda-oom"] == 3


@quick
@given(recipe=recipes, cuts=st.lists(st.integers(0, 200_000), max_size=8))
def test_sampling_does_not_depend_on_portions(engine: Engine, recipe: Recipe, cuts: list[int]) -> None:
    log = log_of(recipe)
    once, read_once, _ = read(engine, {"rank0.log": log})
    often, read_often, _ = read(engine, {"rank0.log": log}, cuts=cuts)
    assert read_often == read_once
    assert rendered(often.diagnose()) == rendered(once.diagnose())


@pytest.mark.parametrize(
    "text",
    [
        "versions: torch=2.6.0 deepspeed=0.16.3",
        "pytorch_lightning==2.4.0",
        "torch_npu==2.1.0",
        "torch-npu==2.1.0",
        "- `transformers` version: 4.46.3",
        "deepspeed info ................... 0.16.4, unknown, unknown",
    ],
)
def test_version_in_the_middle_of_a_long_log_is_found(engine: Engine, text: str) -> None:
    steps = [metric(1, step, "[2026-05-02 09:00:00,000] [INFO]") for step in range(1, 3000)]
    log = "\n".join([*steps[:120], text, *steps[120:], ""]).encode()
    reading, _, _ = read(engine, {"rank0.log": log})
    assert reading.diagnose().environment == versions_in(text) != {}


def steps_of(diagnosis: Diagnosis) -> dict[str, tuple[int | str | None, ...]]:
    """The first and the last time of each rule, and the reported number of steps after it."""
    found = {}
    for finding in diagnosis.findings:
        followed = re.search(r"(\d+) (?:steps )?followed", render(finding.note))
        found[finding.rule] = (finding.first.step, finding.last.step, followed and followed[1])
    return found


@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize("seed", [1, 2])
def test_steps_of_rare_findings_equal_those_of_a_complete_reading(
    engine: Engine, seed: int, form: int
) -> None:
    """Lines of form 0 name no step: the steps that followed them are counted."""
    log = log_of(Recipe(seed, form, steps=1500, notices=0.01, faults=(0, 1, 0, 1), ends=""))
    whole, lines, _ = read(engine, {"rank0.log": log}, None)
    sieved, few, _ = read(engine, {"rank0.log": log}, replace(SMALL, chunk=65_536))
    assert few < lines / 5
    expected = steps_of(whole.diagnose())
    assert len(expected) >= 3
    assert steps_of(sieved.diagnose()) == expected


@pytest.mark.parametrize("prefix", ["[rank{rank}]: ", "[default{rank}]:"])
def test_steps_of_findings_are_those_of_their_rank(engine: Engine, prefix: str) -> None:
    """Several ranks write into one file, one of them far ahead of the others."""
    logs = [
        log_of(Recipe(seed, 1, steps=500, notices=0.01, faults=(0, 1), ends="")).decode().splitlines()
        for seed in (1, 2, 3)
    ]
    rng, lines = random.Random(5), list[str]()
    left = [deque(log[rank * 60 :]) for rank, log in enumerate(logs)]
    while any(left):
        rank = rng.choice([rank for rank, log in enumerate(left) if log])
        lines += [
            prefix.format(rank=rank) + left[rank].popleft()
            for _ in range(min(len(left[rank]), rng.randrange(1, 4)))
        ]
    log = "\n".join([*lines, ""]).encode()
    whole, count, _ = read(engine, {"train.log": log}, None)
    sieved, few, _ = read(engine, {"train.log": log}, replace(SMALL, chunk=65_536))
    assert few < count / 2
    expected = places_of(whole.diagnose())
    assert len(expected) >= 3
    assert places_of(sieved.diagnose()) == expected


def places_of(diagnosis: Diagnosis) -> dict[str, list[tuple[int | None, int | None, int | None]]]:
    """The first and the last match of each rule: line, rank and step."""
    return {
        finding.rule: [(place.line, place.rank, place.step) for place in (finding.first, finding.last)]
        for finding in diagnosis.findings
    }


def ranks_of(count: int, steps: int) -> dict[str, bytes]:
    """Logs of long lines, as trainers print them; the last rank fails and prints much at its end."""
    step = (
        "2026-11-20 03:{:02d}:{:02d},000 INFO trainer.py:88 step={} loss=1.{:04d} grad_norm=0.71 lr=1.0e-05 "
        "tokens/s=9321.4 mem=61.2GiB samples=128 queue=4\n"
    )
    lines = [step.format(at // 60 % 60, at % 60, at, at) for at in range(1, steps)]
    logs = {f"rank{rank}.log": "".join(lines).encode() for rank in range(count)}
    words = [f"{CHATTER[3].format(n=n)}\n" for n in range(2000)]
    logs[f"rank{count - 1}.log"] = "".join([*lines, FAULTS[0], "\n", *words]).encode()
    return logs


def test_log_of_long_lines_is_sampled(engine: Engine) -> None:
    _, read_lines, lines = read(engine, ranks_of(1, 8000), ScanSizes())
    assert read_lines < lines / 3


def test_number_of_read_lines_decreases_with_the_number_of_logs(engine: Engine) -> None:
    logs = ranks_of(40, 2000)
    whole, _, _ = read(engine, logs, None)
    usual, each, _ = read(engine, logs, ScanSizes.of_run([len(logs["rank0.log"])]))
    fewer, few, _ = read(engine, logs, ScanSizes.of_run(map(len, logs.values())))
    assert few < each / 4
    expected = outcome(whole.diagnose(ending=FAILED))
    assert outcome(usual.diagnose(ending=FAILED)) == outcome(fewer.diagnose(ending=FAILED)) == expected
    assert expected[0] == "failed"


def test_only_some_of_many_logs_are_searched_completely(engine: Engine) -> None:
    sizes = ScanSizes.of_run([10**6] * 1024)
    dense = [sizes.is_dense(sizes.first_chunk(f"rank{rank}.log")) for rank in range(1024)]
    assert 1024 / 12 < sum(dense) < 1024 / 5
    assert ScanSizes.of_run([10**6] * 8).first_chunk("rank0.log") == 0
    logs = ranks_of(9, 2000)
    whole, _, _ = read(engine, logs, None)
    found, _, _ = read(engine, logs, sizes)
    assert outcome(found.diagnose(ending=FAILED)) == outcome(whole.diagnose(ending=FAILED))


def test_most_lines_of_a_long_log_are_skipped(engine: Engine) -> None:
    lines = [metric(1, step, "[2026-05-02 09:00:00,000] [INFO]") for step in range(1, 20_000)]
    _, read_lines, count = read(engine, {"rank0.log": "\n".join(lines).encode() + b"\n"})
    assert count == len(lines)
    assert read_lines < 0.35 * count


@pytest.mark.parametrize("folder", sorted(path.name for path in RECORDINGS.iterdir()))
def test_sampled_recording_gives_the_same_diagnosis(engine: Engine, folder: str) -> None:
    files = sorted((RECORDINGS / folder).rglob("*.log"))
    assert files
    sources = {path.name: path.read_bytes() for path in files}
    whole, _, _ = read(engine, sources, None)
    sieved, _, _ = read(engine, sources)
    assert outcome(sieved.diagnose()) == outcome(whole.diagnose())


@pytest.mark.parametrize("length", [100_000, 400_000, 3_000_000])
def test_end_of_a_line_over_many_chunks_is_read(engine: Engine, length: int) -> None:
    steps = [metric(1, step, "[2026-05-02 09:00:00,000] [INFO]") for step in range(1, 3000)]
    long = "0.125, " * (length // 7) + FAULTS[0]
    log = "\n".join([*steps, long, *steps[:2000]]).encode() + b"\n"
    for sizes in (SMALL, None):
        reading, _, _ = read(engine, {"rank0.log": log}, sizes)
        found = {finding.rule: finding.first for finding in rendered(reading.diagnose()).findings}
        assert found["cuda-oom"].line == len(steps) + 1


def test_frequent_lines_about_versions_are_not_searched_for_in_every_chunk() -> None:
    assert {watch.name for watch in WATCHES if watch.rare} == {"version", "run"}
