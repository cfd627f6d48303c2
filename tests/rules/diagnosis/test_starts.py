"""Several starts of a program in one log: each has its verdict, and the newest is reported."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest
from smallruns import OOM, raised, steps

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Start
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.scan.heads import head_texts
from stallwatch_rules.scan.patterns import scan_engine
from stallwatch_rules.scan.sources import SourceReading
from stallwatch_rules.starts import FIRST_KEPT, LAST_KEPT, is_same_line, mark_of

HEAD = """\
2026-05-02 {hour:02}:00:00,100 INFO main pid {pid}: using device cuda:0
2026-05-02 {hour:02}:00:00,200 INFO main Namespace(model='small', learning_rate={rate}, batch_size=32)
2026-05-02 {hour:02}:00:01,300 INFO data reading the shards of /data/corpus
2026-05-02 {hour:02}:00:09,400 INFO data found 812 shards
2026-05-02 {hour:02}:00:10,500 INFO model built with 85.0M parameters
"""
INTERRUPTED = raised("KeyboardInterrupt")
BARE = raised("ValueError: batch 24 has no reward")
USAGE = """\
usage: train.py [-h] [--rate RATE] [--batch-size BATCH_SIZE]
train.py: error: unrecognized arguments: --ratee 0.1
"""


def head(hour: int, rate: float = 0.1) -> str:
    return HEAD.format(hour=hour, pid=4000 + 7 * hour, rate=rate)


def read(catalogue: Catalogue, matcher: Matcher, text: str, *, lines: int = 10_000) -> RunReading:
    reading = RunReading(catalogue, matcher, starts=True)
    found = LineReader("train.log").feed(text.encode())
    for first in range(0, len(found), lines):
        reading.feed(found[first : first + lines])
    return reading


def ends(diagnosis: Diagnosis) -> list[tuple[str, str | None]]:
    """Verdict and rule of each start, the first one first."""
    return [(start.verdict, start.rule) for start in reversed(diagnosis.starts)]


class Case(NamedTuple):
    text: str
    ends: list[tuple[str, str | None]]
    primary: str | None = None


WHOLE = steps(1, 90, total=90)
CASES = {
    "failed, then well": Case(
        head(9) + steps(1, 20, total=90) + raised(OOM) + head(10) + WHOLE,
        [("failed", "cuda-oom"), ("finished", None)],
    ),
    "well, then failed at import": Case(
        head(9) + WHOLE + head(10) + raised("ModuleNotFoundError: No module named 'flash_attn'"),
        [("finished", None), ("failed", "flash-attn-missing")],
        "flash-attn-missing",
    ),
    "three with Ctrl-C": Case(
        head(9) + steps(1, 20, total=90) + INTERRUPTED
        + head(10) + steps(1, 30, total=90) + INTERRUPTED
        + head(11) + steps(1, 40, total=90) + INTERRUPTED,
        [("interrupted", None)] * 3,
    ),
    "a sweep of which one failed": Case(
        "".join(
            head(9 + n, rate=(n + 1) / 10) + (steps(1, 20, total=90) + raised(OOM) if n == 2 else WHOLE)
            for n in range(5)
        ),
        [("finished", None)] * 2 + [("failed", "cuda-oom")] + [("finished", None)] * 2,
    ),
    "one without steps": Case(
        head(9) + raised(OOM) + head(10) + BARE + head(11) + WHOLE,
        [("failed", "cuda-oom"), ("unknown-failure", None), ("finished", None)],
    ),
    "usage last": Case(
        head(9) + WHOLE + USAGE,
        [("finished", None), ("failed", "config-argparse-error")],
        "config-argparse-error",
    ),
    "killed without a word": Case(
        head(9) + steps(1, 60, total=90) + head(10) + steps(1, 30, total=90),
        [("unfinished", None), ("unfinished", None)],
    ),
    "a shell that shows its commands": Case(
        "+ python train.py --rate 0.1\n" + steps(1, 20, total=90) + raised(OOM)
        + "+ python train.py --rate 0.2\n" + WHOLE,
        [("failed", "cuda-oom"), ("finished", None)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", [10_000, 1, 7], ids=["at once", "line by line", "in portions"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_start_has_a_verdict_and_the_newest_is_reported(
    case: Case, lines: int, catalogue: Catalogue, matcher: Matcher
) -> None:
    found = read(catalogue, matcher, case.text, lines=lines).diagnose()
    assert ends(found) == case.ends
    newest = found.starts[0]
    assert [start.reported for start in found.starts] == [True, *[False] * (len(case.ends) - 1)]
    assert [start.number for start in found.starts] == list(range(len(case.ends), 0, -1))
    assert (found.verdict, found.primary and found.primary.rule) == (newest.verdict, case.primary)


def test_start_has_its_lines_and_steps(catalogue: Catalogue, matcher: Matcher) -> None:
    found = read(catalogue, matcher, CASES["failed, then well"].text).diagnose()
    newest, first = found.starts
    assert (first.first_line, first.last_line, newest.first_line, newest.last_line) == (1, 29, 30, 124)
    assert (first.first_step, first.last_step, first.total_steps) == (1, 20, 90)
    assert (newest.first_step, newest.last_step) == (1, 90)
    assert (first.began, newest.began) == ("2026-05-02T09:00:00.100", "2026-05-02T10:00:00.100")
    assert (found.progress.first_step, found.progress.last_step) == (1, 90)
    (note,) = rendered(found.notes)
    assert note == "The log contains 1 earlier start: 1× FAILED (cuda-oom)."


IMPORTS = "".join(f"importing the {name} module\n" for name in ("vision", "audio", "text", "graph"))
SILENT_STEPS = steps(1, 20, total=90)
WAITS = "waiting for the other ranks\nthe device is ready\nthe memory is allocated\nbefore the barrier\n"
ONE = {
    "ranks without labels": "".join(f"{line}\n" * 4 for line in head(9).splitlines()) + WHOLE,
    "ranks of which each fails": head(9) * 2 + raised(OOM) + "\n".join(head(9).splitlines()) + "\n",
    "ranks that print the head long apart, of which one fails": head(9) + head(10) + raised(OOM) + head(11)
    + WAITS + head(12) + WAITS,
    "loader workers": head(9)
    + "".join(steps(30 * n + 1, 30 * n + 30, total=90) + head(9).split("data")[0] + "\n" for n in range(3)),
    "epochs": head(9)
    + "".join(
        f"Epoch {n}/3\nTraining on the shards\nThe rate is lowered now\nEvaluation follows it\n"
        + "".join(f"step {step}/30 loss 1.5\n" for step in range(1, 31))
        for n in range(1, 4)
    ),
    "workers of each epoch, with a bar of its own": IMPORTS + head(9)
    + "".join(IMPORTS * 4 + steps(1, 30, total=30) for _ in range(4)),
    "a caught exception in each epoch": head(9)
    + "".join(
        "building the loaders\nreading the index\nthe optimizer is new\nthe scheduler is new\n"
        + steps(10 * n + 1, 10 * n + 10) + BARE
        for n in range(4)
    ),
    "evaluations": head(9) + steps(1, 45, total=90) + head(10) + steps(46, 90, total=90),
    "an error that is told for each sample": (
        "ERROR torch.OutOfMemoryError: CUDA out of memory.\nMessages: a and b\nTools: none at all\n"
        "Thinking is switched off\n"
    )
    * 6,
    "workers that torchrun starts again": head(9) + SILENT_STEPS + raised(OOM)
    + "E1119 08:30:02.110000 91 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)"
    " local_rank: 1 (pid: 96) of binary: /opt/conda/bin/python\n" + head(10) + steps(15, 90, total=90),
    "the next program of a script": "+ python train.py\n" + head(9) + WHOLE
    + "+ python evaluate.py\n" + head(10) + "accuracy 0.81\n",
}  # fmt: skip


@pytest.mark.parametrize("text", ONE.values(), ids=ONE)
def test_repeated_lines_without_a_start_are_not_a_start(
    text: str, catalogue: Catalogue, matcher: Matcher
) -> None:
    reading = read(catalogue, matcher, text)
    assert reading.diagnose().starts == []
    assert reading.starts.count == 0


def test_log_that_ends_at_a_new_start_reports_the_previous_one(
    catalogue: Catalogue, matcher: Matcher
) -> None:
    text = head(9) + steps(1, 20, total=90) + raised(OOM) + head(10)
    found = read(catalogue, matcher, text).diagnose()
    assert (found.verdict, found.starts) == ("failed", [])


def test_log_is_read_as_one_run_by_default(catalogue: Catalogue, matcher: Matcher) -> None:
    reading = RunReading(catalogue, matcher)
    lines = LineReader("train.log").feed(CASES["failed, then well"].text.encode())
    behind = next(index for index, line in enumerate(lines) if index and "main pid" in line.text)
    reading.feed(lines[: behind + 3])
    assert reading.tracker.last_step == 20  # a head that comes again takes nothing away from who watches
    reading.feed(lines[behind + 3 :])
    found = reading.diagnose()
    assert (found.starts, found.progress.last_step) == ([], 90)


def test_interleaved_ranks_are_one_start(catalogue: Catalogue, matcher: Matcher) -> None:
    def of(rank: int, text: str) -> list[str]:
        return [f"[rank{rank}]: {line}" for line in text.splitlines()]

    first, second = head(9) + steps(1, 20) + raised(OOM), head(10) + steps(1, 40)
    both = [[of(rank, part) for rank in range(2)] for part in (first, second)]
    in_turns = [line for zero, item in both for pair in zip(zero, item, strict=True) for line in pair]
    for lines in (in_turns, [line for zero, item in both for line in zero + item]):
        found = read(catalogue, matcher, "".join(f"{line}\n" for line in lines)).diagnose()
        assert [(start.verdict, start.rule, start.last_step) for start in found.starts] == [
            ("unfinished", None, 40),
            ("failed", "cuda-oom", 20),
        ]


def test_memory_for_many_starts_is_bounded(catalogue: Catalogue, matcher: Matcher) -> None:
    one = head(9) + steps(1, 3) + raised(OOM)
    reading = RunReading(catalogue, matcher, starts=True)
    reader = LineReader("train.log")
    for _ in range(100):
        reading.feed(reader.feed(one.encode()))
    reading.feed(reader.finish())
    found = reading.diagnose()
    assert len(found.starts) == 1 + FIRST_KEPT + LAST_KEPT
    assert [start.number for start in found.starts][:3] == [100, 99, 98]
    assert found.starts[-1].number == 1
    assert "99 earlier starts: 99× FAILED (cuda-oom)" in rendered(found.notes)[0]
    assert "… and 79 more." not in to_html(found)
    assert "… and 80 more." in to_markdown(found)


def test_starts_in_the_middle_of_a_long_log_are_found(catalogue: Catalogue, matcher: Matcher) -> None:
    long = "".join(f"step {step}/9000 loss {9 - step / 1000:.4f} {'.' * 40}\n" for step in range(1, 6001))
    parts = [head(9), raised(OOM), head(10), INTERRUPTED, head(11), BARE, head(12)]
    text = "".join(part + long * part.startswith("2026") for part in parts)
    reading = RunReading(catalogue, matcher, starts=True)
    source = SourceReading(reading, LineReader("train.log"), lambda: scan_engine(matcher))
    source.feed(text.encode())
    source.finish()
    found = reading.diagnose()
    assert [start.verdict for start in found.starts] == [
        "unfinished",
        "unknown-failure",
        "interrupted",
        "failed",
    ]
    firsts = [n for n, line in enumerate(text.splitlines(), 1) if "main pid" in line]
    assert [start.first_line for start in reversed(found.starts)] == firsts


def test_texts_of_a_head_exclude_numbers_and_metrics() -> None:
    metrics = "".join(f"step {step} loss 1.5 and a learning rate\n" for step in range(40))
    assert head_texts((head(9) + metrics).encode()) == (
        ": using device cuda:",
        "INFO main Namespace(model='small', learning_rate=",
        "INFO data reading the shards of /data/corpus",
        "INFO data found",
        "INFO model built with",
    )


def test_every_report_shows_the_starts(catalogue: Catalogue, matcher: Matcher) -> None:
    found = read(catalogue, matcher, CASES["failed, then well"].text).diagnose()
    given = "This report covers start 2 of 2, which is the newest start."
    assert given in to_markdown(found)
    assert "| 1 | FAILED | cuda-oom | 20 of 90 | 1–29 |" in to_markdown(found)
    assert given in to_html(found)
    assert "日志里有 2 次启动，本报告针对最新的一次（第 2 次）。" in to_markdown(found, "zh")


def test_start_shows_who_stopped_it(catalogue: Catalogue, matcher: Matcher) -> None:
    found = read(catalogue, matcher, CASES["three with Ctrl-C"].text).diagnose()
    assert [start.interrupted_by for start in found.starts] == ["user"] * 3
    assert "| 1 | INTERRUPTED |  | 20 of 90 |" in to_markdown(found)
    other = msgspec.structs.replace(found, starts=[_stopped_from_outside(start) for start in found.starts])
    assert "| 1 | INTERRUPTED | The run ended because it received a signal" in to_markdown(other)


def _stopped_from_outside(start: Start) -> Start:
    title = message("report.asked-to-end.text")
    return msgspec.structs.replace(start, interrupted_by="signal", title=title)


def test_lines_that_differ_between_starts_are_equal() -> None:
    assert is_same_line("2026-05-02 09:00:00 pid 812 port :29500", "2026-05-03 11:12:13 pid 4711 port :29871")
    assert is_same_line("loaded in 3.2 s", "loaded in 18 s")
    assert not is_same_line("Epoch 1/10", "Epoch 2/10")
    assert not is_same_line("learning_rate=0.1", "learning_rate=0.2")


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("+ torchrun --nproc-per-node 8 train.py --rate 1", "train.py"),
        ("(base) ada@host:~/run$ python train.py", "train.py"),
        ("nohup: ignoring input", "nohup"),
        ("usage: train.py [-h]", "train.py"),
        ("usage: git [-v | --version]", None),
        ("costs $ 12 in python terms", None),
        ("a + b", None),
    ],
)
def test_programs_that_start_others_are_recognized(line: str, program: str | None) -> None:
    mark = mark_of(line)
    assert (mark.program if mark is not None else None) == program
