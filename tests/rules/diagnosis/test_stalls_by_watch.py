"""A watched run that stalled and was then ended: the stall is the cause, the way of ending it is not."""

from __future__ import annotations

import pytest
from smallruns import killed_by

from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

STEPS = "".join(f"step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 21))
TERMINATED = (
    "W1121 08:40:03.561000 25446 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal,"
    " shutting down workers\n"
)
KILLED = (
    "E1121 08:41:10.745000 26924 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)"
    " local_rank: 1 (pid: 27127) of binary: /opt/venv/bin/python\n"
)
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79 GiB\n"


BY_SIGKILL = killed_by("SIGKILL")


def ended(catalogue: Catalogue, text: str, *, stalled: bool, ending: Ending = BY_SIGKILL) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    return rendered(reading.diagnose(ending=ending, stalled=stalled))


@pytest.mark.parametrize("end", [TERMINATED, KILLED, TERMINATED + KILLED, ""])
def test_stall_is_the_cause_of_a_run_ended_during_it(catalogue: Catalogue, end: str) -> None:
    found = ended(catalogue, STEPS + end, stalled=True)
    assert found.verdict == "failed" and found.primary is not None
    assert found.primary.rule == "silent-hang-no-error"


@pytest.mark.parametrize(
    ("end", "rule"), [(TERMINATED, "secondary-sigterm-cascade"), (KILLED, "host-oom-sigkill")]
)
def test_signal_is_the_cause_without_a_stall(catalogue: Catalogue, end: str, rule: str) -> None:
    found = ended(catalogue, STEPS + end, stalled=False)
    assert found.primary is not None and found.primary.rule == rule


def test_failure_in_the_log_explains_the_stall(catalogue: Catalogue) -> None:
    found = ended(catalogue, STEPS + OOM + TERMINATED, stalled=True)
    assert found.primary is not None and found.primary.rule == "cuda-oom"


def test_out_of_memory_kill_is_not_a_stall(catalogue: Catalogue) -> None:
    found = ended(catalogue, STEPS + KILLED, stalled=True, ending=Ending("oom-killed", 137, "SIGKILL"))
    assert found.primary is not None and found.primary.rule == "host-oom-sigkill"
