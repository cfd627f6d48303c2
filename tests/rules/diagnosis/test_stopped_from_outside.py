"""A run that a signal from outside ended after one of its ranks had died unnoticed."""

from __future__ import annotations

import pytest
from smallruns import FAILED, killed_by

from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.brief import to_brief

STEPS = "".join(f"[rank0]: step {step}/200 loss {2 / step:.4f}\n" for step in range(1, 48))
CRASH = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/srv/rank.py", line 8, in <module>\n'
    "[rank1]:     reward(batch)\n"
    "[rank1]: ValueError: no reward for batch 24\n"
)
TERMINATED = (
    "W1121 08:40:03.561000 25446 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal,"
    " shutting down workers\n"
)
NOTIFIED = killed_by("SIGTERM", passed_on="SIGTERM")


def ended(catalogue: Catalogue, text: str, ending: Ending = NOTIFIED, language: str = "en") -> Diagnosis:
    reading = RunReading(catalogue)
    stamps = (f"2026-11-22T02:0{i // 60}:{i % 60:02}.000000000Z stderr F " for i in range(600))
    reading.feed(lines_of("".join(map(str.__add__, stamps, text.splitlines(keepends=True))), "stderr"))
    return rendered(reading.diagnose(ending=ending), language)


def split(text: str) -> str:
    """The steps, with a text after half of them."""
    half = STEPS.index("[rank0]: step 25")
    return STEPS[:half] + text + STEPS[half:]


@pytest.mark.parametrize("end", ["", TERMINATED])
def test_earlier_exception_of_a_rank_is_named(catalogue: Catalogue, end: str) -> None:
    found = ended(catalogue, split(CRASH) + end)
    assert found.primary is not None and found.primary.rule == "secondary-sigterm-cascade"
    note = found.findings[0].note
    assert "ValueError: no reward for batch 24 (rank 1, stderr:28" in note
    assert "nothing in the log says why" not in note
    if not end:
        assert "ValueError: no reward for batch 24" in to_brief(found)
        assert len(to_brief(found).splitlines()) <= 5


def test_earlier_exception_is_named_in_chinese(catalogue: Catalogue) -> None:
    note = ended(catalogue, split(CRASH), language="zh").findings[0].note
    assert note.startswith("训练收到外部信号后退出。") and "ValueError: no reward for batch 24" in note


def test_signal_without_an_exception_has_no_further_cause(catalogue: Catalogue) -> None:
    assert "nothing in the log explains why" in to_brief(ended(catalogue, STEPS))


CLOSING = "W1121 08:40:04.1 7405 api.py:1028] Sending process 7408 closing signal SIGTERM\n"
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79 GiB\n"


@pytest.mark.parametrize(
    ("end", "by_launcher"),
    [(OOM + CLOSING, True), (CRASH + CLOSING, True), (OOM + TERMINATED + CLOSING, False), (CLOSING, False)],
)
def test_signal_of_the_launcher_after_a_failure_is_a_consequence(
    catalogue: Catalogue, end: str, by_launcher: bool
) -> None:
    found = ended(catalogue, STEPS + end, ending=FAILED)
    (sigterm,) = [finding for finding in found.findings if finding.rule == "secondary-sigterm-cascade"]
    assert sigterm.note.startswith("The launcher ended the other processes") == by_launcher


@pytest.mark.parametrize(
    ("code", "signal", "how"),
    [(1, None, "the exit code was 1"), (137, "SIGKILL", "the command was ended by SIGKILL")],
)
def test_forwarded_ending_of_release_0_1_is_understood(
    catalogue: Catalogue, code: int, signal: str | None, how: str
) -> None:
    detail = f"SIGTERM was sent to stallwatch, which forwarded it; {how}."
    found = ended(catalogue, STEPS, ending=Ending("killed", code, signal, detail))
    assert found.primary is not None and found.primary.rule == "secondary-sigterm-cascade"
