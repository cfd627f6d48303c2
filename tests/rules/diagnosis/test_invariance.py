"""Different portions of a log, or a different interleaving of its ranks, never change the diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, pairwise
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

CLOCK = "[2026-05-02 09:{minute:02}:{second:02},000] [INFO] "


def timed(index: int, text: str) -> str:
    return CLOCK.format(minute=index // 6 % 60, second=index * 10 % 60) + text


def step(rank: int, index: int) -> list[str]:
    return [timed(index, f"step {index}/90 loss 1.5")]


def bare_step(rank: int, index: int) -> list[str]:
    return [f"step {index} loss 1.5"]


def trace(rank: int, index: int) -> list[str]:
    return ["Invalidate trace cache @ step 3: expected module 1, but got module 2"]


def overflow(rank: int, index: int) -> list[str]:
    return [
        timed(index, "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2")
    ]


def unknown(rank: int, index: int) -> list[str]:
    return [
        "Traceback (most recent call last):",
        f'  File "/home/ada/part{index % 2}.py", line 3, in f',
        "    g()",
        f"ValueError: bad number {index}",
    ]


def logged(rank: int, index: int) -> list[str]:
    header, *more = unknown(rank, index)
    worked = [timed(index, f"the rollout of {name} has begun") for name in ("ada", "bob", "eve")]
    return [f"ERROR:2026-05-02 09:00:00,691:{header}", *more, *worked]


def oom(rank: int, index: int) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "/home/ada/train.py", line 9, in main',
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total "
        "capacity of 79.15 GiB of which 1.06 GiB is free.",
    ]


def disk(rank: int, index: int) -> list[str]:
    return [timed(index, "OSError: [Errno 28] No space left on device: 'checkpoint-100/optimizer.pt'")]


def closed(rank: int, index: int) -> list[str]:
    return [
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[10.1.2.3]:4567"
    ]


def timeout(rank: int, index: int) -> list[str]:
    return [
        f"[E ProcessGroupNCCL.cpp:828] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={index}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800123 milliseconds"
    ]


def interrupt(rank: int, index: int) -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "train.py", line 1, in <module>',
        "KeyboardInterrupt",
    ]


def wrapper(rank: int, index: int) -> list[str]:
    return ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"]


def metrics(rank: int, index: int) -> list[str]:
    loss = 9.5 if index % 7 == 0 else 1.5 + 0.01 * index
    return [
        f"{{'loss': {loss}, 'grad_norm': {index % 3 and 1.0}, 'learning_rate': 1e-05, 'epoch': 5.{index:02}}}"
    ]


def frozen(rank: int, index: int) -> list[str]:
    return [f"step {7000 + index} loss 2.3456789" for index in range(12 * index, 12 * index + 12)]


def uneven(rank: int, index: int) -> list[str]:
    pace = 100.0 if index < 8 else 106.0
    return [f"iteration {7000 + index} | elapsed time per iteration (s): {pace} | lm loss: 2.{index:02}"]


def evaluation(rank: int, index: int) -> list[str]:
    return [timed(index, "***** Running Evaluation *****")]


def late(rank: int, index: int) -> list[str]:
    return ["[2026-05-02 13:00:00,000] [INFO] still here"]


def experts(rank: int, index: int) -> list[str]:
    return ["Loading MixtralForCausalLM", "gpu1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"]


def stacks(rank: int, index: int) -> list[str]:
    waits = "    _try_get_data (torch/utils/data/dataloader.py:1131)"
    return [waits if index % 2 else "    all_reduce (torch/distributed/distributed_c10d.py:2501)"]


def killed(rank: int, index: int) -> list[str]:
    return [timed(index, "['x'] exits with return code = -9")]


EVENTS: list[Callable[[int, int], list[str]]] = [
    step,
    step,
    bare_step,
    trace,
    overflow,
    unknown,
    logged,
    oom,
    disk,
    closed,
    timeout,
    interrupt,
    wrapper,
    metrics,
    metrics,
    frozen,
    uneven,
    uneven,
    evaluation,
    late,
    experts,
    stacks,
    killed,
]


class Outcome(NamedTuple):
    verdict: str
    primary: tuple[str, int | None, int | None] | None
    findings: frozenset[tuple[str, str]]
    unknown: frozenset[tuple[str, tuple[int, ...]]]


def outcome(diagnosis: Diagnosis) -> Outcome:
    return Outcome(
        diagnosis.verdict,
        (diagnosis.primary.rule, diagnosis.primary.rank, diagnosis.primary.step)
        if diagnosis.primary
        else None,
        frozenset((finding.rule, finding.harm) for finding in diagnosis.findings),
        frozenset((item.exception, tuple(item.ranks)) for item in diagnosis.unknown),
    )


@st.composite
def rank_logs(draw: st.DrawFn) -> list[list[str]]:
    """Draw the lines of two to four ranks, each in its own order."""
    logs = []
    for rank in range(draw(st.integers(2, 4))):
        events = draw(st.lists(st.sampled_from(EVENTS), max_size=14))
        logs.append([line for index, event in enumerate(events, 1) for line in event(rank, index)])
    return logs


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue, matcher: Matcher) -> tuple[Catalogue, Matcher]:
    return catalogue, matcher


def read(
    engine: tuple[Catalogue, Matcher], text: bytes, cuts: Iterable[int] = (), source: str = "run.log"
) -> Diagnosis:
    reading, reader = RunReading(*engine), LineReader(source)
    marks = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(marks):
        reading.feed(reader.feed(text[start:end]))
    reading.feed(reader.finish())
    return rendered(reading.diagnose())


def interleaved(logs: list[list[str]], choices: Iterable[int]) -> bytes:
    """Return one file with rank prefixes; ``choices`` selects the log of each next line."""
    waiting = [[f"[default{rank}]:{line}\n" for line in log] for rank, log in enumerate(logs)]
    lines = []
    for choice in choices:
        left = [queue for queue in waiting if queue]
        if left:
            lines.append(left[choice % len(left)].pop(0))
    return "".join(lines + [line for queue in waiting for line in queue]).encode()


quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


#: Rank 1 printed three steps after the last time of rank 2: above the lines of rank 2, or between them.
OTHERS_STEPS = [
    step(0, 1),
    [*chain(*(step(1, i) for i in range(1, 5))), *oom(1, 5)],
    [*step(2, 1), *oom(2, 2)],
]


#: Two ranks completed the last step at the same time, and the clock of one of them jumps.
SAME_LAST_TIME = [[*step(0, 1), *step(0, 2)], [*late(1, 1), *step(1, 2), *late(1, 3)]]
#: A user stopped the run after its first step, so the usual duration of a step is unknown.
ONE_STEP = [interrupt(0, 1), [*step(1, 1), *late(1, 2), *late(1, 3)]]


@quick
@example(logs=OTHERS_STEPS, choices=[], other=[1, 2])
@example(logs=SAME_LAST_TIME, choices=[], other=[1])
@example(logs=ONE_STEP, choices=[], other=[])
@given(logs=rank_logs(), choices=st.lists(st.integers(0, 3), max_size=80), other=st.lists(st.integers(0, 3)))
def test_interleaving_does_not_change_the_diagnosis(
    engine: tuple[Catalogue, Matcher], logs: list[list[str]], choices: list[int], other: list[int]
) -> None:
    one = read(engine, interleaved(logs, choices))
    assert outcome(read(engine, interleaved(logs, other))) == outcome(one)


@quick
@given(logs=rank_logs(), cuts=st.lists(st.integers(0, 100_000), max_size=6))
def test_portions_do_not_change_the_diagnosis(
    engine: tuple[Catalogue, Matcher], logs: list[list[str]], cuts: list[int]
) -> None:
    text = interleaved(logs, [])
    assert read(engine, text, cuts) == read(engine, text)


@quick
@given(logs=rank_logs(), order=st.permutations(range(4)))
def test_order_of_files_does_not_change_the_diagnosis(
    engine: tuple[Catalogue, Matcher], logs: list[list[str]], order: list[int]
) -> None:
    def together(ranks: Iterable[int]) -> Outcome:
        reading = RunReading(*engine)
        for rank in ranks:
            if rank < len(logs):
                reader = LineReader(f"rank{rank}.log", rank)
                reading.feed([*reader.feed("\n".join(logs[rank]).encode()), *reader.finish()])
        return outcome(reading.diagnose())

    assert together(order) == together(range(4))
