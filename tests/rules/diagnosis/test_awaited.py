"""The rank that the others waited for: named only if its log shows that it was elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

GAVE_UP = 1100  #: second of the timeouts; the last of 20 steps is at second 200
LOOK = "Rank 1 did not report this failure: check rank 1 first."
MESSAGE = "Invalidate trace cache @ step 1: expected module 15, but got module 313\n"
INTERRUPTED = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 5, in main\n    f()\nKeyboardInterrupt\n'
)
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4242\n"
REMOTE = "RuntimeError: NCCL error: remote process exited or there was a network error\n"
POSITION = (
    "[rank1]:[E0502 09:18:20.000000000 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1]"
    " Exception (either an error or timeout) detected by watchdog at work: {work}, last enqueued NCCL work:"
    " {work}, last completed NCCL work: 811.\n"
)
SUMMARY = """\
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 11)
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 12)
"""


def at(second: float, text: str) -> str:
    minutes, seconds = divmod(second, 60)
    return f"2026-05-02 09:{minutes:02.0f}:{seconds:02.0f} INFO {text}\n"


def steps(last: int, each: int = 1) -> str:
    return "".join(
        at(10 * step, f"step {step}/900 loss {3 - step / 100:.3f}") for step in range(each, last + 1, each)
    )


def timeout(rank: int, work: int = 812) -> str:
    return at(
        GAVE_UP,
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, "
        "OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=900000) ran for 900012 milliseconds before "
        "timing out.",
    )


def killed(second: float) -> str:
    return at(
        second,
        "torch/distributed/elastic/multiprocessing/api.py:900] Sending process 12 closing signal SIGTERM",
    )


@pytest.fixture
def read(catalogue: Catalogue, matcher: Matcher) -> Callable[..., Diagnosis]:
    def diagnose(*logs: str, launcher: str = "") -> Diagnosis:
        reading = RunReading(catalogue, matcher)
        for rank, text in [*enumerate(logs), (None, launcher)]:
            reader = LineReader(f"rank{rank}.log", rank)
            reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return rendered(reading.diagnose())

    return diagnose


SAVES = "".join(at(200 + 60 * shard, f"saving shard {shard} of 40 to /mnt/ckpt") for shard in range(1, 11))
BEATS = "".join(at(60 * minute, f"the exporter sends report {minute} of this hour") for minute in range(18))


@pytest.mark.parametrize(
    ("own", "launcher", "named", "noted"),
    [
        pytest.param(steps(20), "", False, True, id="its log only ends"),
        pytest.param("", "", False, False, id="no log"),
        pytest.param(steps(19), "", True, False, id="fewer steps"),
        pytest.param(steps(20) + SAVES, "", True, False, id="prints on"),
        pytest.param(
            steps(20) + at(201, "calling all_reduce of bucket 3"), "", False, True, id="one more line"
        ),
        pytest.param(
            BEATS[:400] + steps(20) + BEATS[400:], "", False, True, id="a thread that always prints"
        ),
        pytest.param(steps(20, each=3), "", False, True, id="prints every third step"),
        pytest.param(steps(15, each=5), "", True, False, id="its next step was due"),
        pytest.param(steps(22), "", False, False, id="more steps"),
        pytest.param("world_size=8, on 1 node\n" + steps(19), "", False, False, id="six ranks without a log"),
        pytest.param(steps(19) + killed(GAVE_UP + 1), "", False, False, id="its log has the SIGTERM"),
        pytest.param(steps(19), killed(GAVE_UP + 1), False, False, id="the launcher's SIGTERM"),
        pytest.param(steps(19), SUMMARY, False, False, id="the launcher's summary"),
        pytest.param(steps(19) + INTERRUPTED, "", False, False, id="Ctrl-C"),
        pytest.param(steps(19) + CLOSED, "", False, False, id="gloo lost its peer"),
        pytest.param(steps(19) + REMOTE, "", False, False, id="NCCL lost its peer"),
        pytest.param(steps(19) + POSITION.format(work=812), "", False, False, id="its watchdog is as far"),
        pytest.param(steps(19) + POSITION.format(work=811), "", True, False, id="its watchdog is behind"),
    ],
)
def test_silent_rank_of_two_is_named_if_it_was_elsewhere(
    read: Callable[..., Diagnosis], own: str, launcher: str, named: bool, noted: bool
) -> None:
    found = read(steps(20) + timeout(0), own, launcher=launcher)
    assert found.primary is not None and found.primary.rule == "nccl-collective-timeout"
    assert (found.primary.rank, found.primary.title.endswith(": rank 1")) == (int(named), named)
    assert any("Find the rank" in fix for fix in found.primary.fixes) is not named
    assert (LOOK in found.notes) is noted


@pytest.mark.parametrize(
    ("own", "named"),
    [
        (steps(20), True),
        (steps(19), True),
        (steps(21), False),
        ("world_size=64\n" + steps(20), False),
        (steps(20) + killed(GAVE_UP + 1), False),
        (steps(20) + killed(GAVE_UP - 500), True),
        (steps(20) + CLOSED, False),
    ],
)
def test_silent_rank_of_many_is_named_unless_its_log_contradicts(
    read: Callable[..., Diagnosis], own: str, named: bool
) -> None:
    logs = [own if rank == 3 else steps(20) + timeout(rank) for rank in range(8)]
    found = read(*logs)
    assert found.primary is not None and found.primary.title.endswith(": rank 3") is named


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("silent", [False, True])
def test_trace_cache_remains_the_cause_if_a_report_is_lost(
    read: Callable[..., Diagnosis], ranks: int, silent: bool
) -> None:
    before = "".join(line + MESSAGE for line in steps(20).splitlines(keepends=True))
    logs = [before + ("" if silent and rank == 1 else timeout(rank)) for rank in range(ranks)]
    found = read(*logs)
    assert found.primary is not None and found.primary.rule == "zero3-trace-cache-invalidated"


@pytest.mark.parametrize("own", [steps(19), steps(20) + SAVES])
def test_trace_cache_is_not_the_cause_if_a_rank_was_elsewhere(
    read: Callable[..., Diagnosis], own: str
) -> None:
    found = read(steps(20) + MESSAGE + timeout(0), own)
    assert found.primary is not None
    assert (found.primary.rule, found.primary.rank) == ("nccl-collective-timeout", 1)


def test_other_timeouts_name_no_rank(read: Callable[..., Diagnosis]) -> None:
    late = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"
    for ranks in (2, 4):
        found = read(*(steps(10) + late * (rank != 1) for rank in range(ranks)))
        assert found.primary is not None and found.primary.rule == "ray-get-timeout"
        assert not found.primary.title.endswith("rank 1")


def test_rank_known_by_its_position_is_not_searched(read: Callable[..., Diagnosis]) -> None:
    found = read(*(steps(20) + timeout(rank, 811 if rank == 3 else 812) for rank in range(5)))
    assert found.primary is not None and found.primary.title.endswith(": rank 3")
    assert found.primary.fixes[0].startswith("Rank 3 waited in collective 811")
    assert not any("Find the rank" in fix for fix in found.primary.fixes)
