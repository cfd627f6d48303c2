"""The words for verdicts, and how schema 1 and lists of jobs show them."""

from __future__ import annotations

from typing import get_args

import pytest
from smallruns import FAILED, FINISHED, SIGTERM, killed_by, raised, stamped, steps

from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import LANGUAGES, render
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import has
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Primary, Verdict
from stallwatch_rules.report.json import schema_1_verdict
from stallwatch_rules.report.phrases import badge, headline

MID = steps(1, 30, total=90)
END = steps(1, 90, total=90)
TIMED = stamped([(n, f"step {n}/90 loss {2 / n:.3f}") for n in range(1, 91)])
OVER = stamped([(90.5, "Training finished")])
STARTED = "***** Running training *****\n"
CTRL_C = raised("KeyboardInterrupt")
LIGHTNING = "Detected KeyboardInterrupt, attempting graceful shutdown ...\n"
BY_USER = "Training interrupted by user\n"
SLURM = "slurmstepd: error: *** STEP 88131.0 ON n1 CANCELLED AT 2026-05-02T10:00:00 {}***\n"
NEWER_SLURM = SLURM.format("DUE to SIGNAL Terminated ").replace("slurmstepd:", "[2026-05-02T10:00:00.229]")
EPOCHS = "".join(
    f"100%|#####| 50/50 [00:25<00:00,  2.00it/s]\nEpoch {epoch} Train Loss: {5 / epoch:.4f}\n"
    for epoch in (1, 2, 3)
)
LOADED = "100%|#####| 2/2 [00:00<00:00, 10.03it/s]\n"
ASKED = "[rank: 0] Received SIGTERM: 15\n"
STOPPED = Ending("interrupted", 130, "SIGINT")
UNWATCHED = Ending("unknown", None)
OOM = raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")


def timed(start: float, later: float, error: str) -> str:
    return stamped([(start + later, line) for line in raised(error).splitlines()])


@pytest.mark.parametrize(
    ("text", "known", "verdict", "by", "old"),
    [
        (END, {}, "finished", None, "healthy"),
        (MID, {"ending": FINISHED}, "finished", None, "healthy"),
        (END + CTRL_C, {}, "finished", None, "healthy"),  # its later lines are no training
        (MID, {}, "unfinished", None, "healthy"),
        (MID, {"watched": True}, "healthy", None, "healthy"),
        (MID, {"now": 1.0}, "healthy", None, "healthy"),
        (MID, {"ending": UNWATCHED}, "unfinished", None, "healthy"),
        (MID, {"ending": UNWATCHED, "now": 1.0}, "unfinished", None, "healthy"),  # as the agent says then
        (STARTED, {}, "no-evidence", None, "healthy"),
        (STARTED, {"now": 1.0}, "no-evidence", None, "healthy"),  # until its first step
        (STARTED, {"ending": FINISHED}, "finished", None, "healthy"),
        ("Fine-tuning completed in 90 s\n", {}, "finished", None, "healthy"),
        ("Fine-tuning completed for this fold\n", {}, "no-training-log", None, "no-training-log"),
        ("hello\n", {"ending": FINISHED}, "no-training-log", None, "no-training-log"),
        (MID + CTRL_C, {}, "interrupted", "user", "healthy"),
        (MID + CTRL_C + MID, {}, "unfinished", None, "healthy"),  # an earlier start was stopped
        (MID + "^C\n", {}, "interrupted", "user", "healthy"),
        (EPOCHS + "^CTraceback (most recent call last):\n", {}, "interrupted", "user", "healthy"),
        (LOADED + CTRL_C, {}, "interrupted", "user", "healthy"),  # a bar of no training
        (MID + "Terminated\n", {}, "interrupted", "signal", "failed"),  # a shell's word
        (MID + NEWER_SLURM, {}, "interrupted", "cancelled", "failed"),
        (MID + LIGHTNING, {}, "interrupted", "user", "healthy"),
        (MID + BY_USER, {}, "interrupted", "user", "healthy"),
        (MID + f'    print("{BY_USER[:-1]}")\n', {}, "unfinished", None, "healthy"),  # source code
        (MID, {"ending": STOPPED}, "interrupted", "user", "healthy"),
        (MID + ASKED, {}, "interrupted", "signal", "healthy"),
        (MID + SIGTERM + "\n", {"ending": killed_by("SIGTERM")}, "interrupted", "signal", "failed"),
        (MID + SIGTERM + "\n", {}, "failed", None, "failed"),  # by a launcher, after a failure elsewhere
        (MID + SLURM.format(""), {}, "interrupted", "cancelled", "failed"),
        (MID + SLURM.format("DUE TO TIME LIMIT "), {}, "interrupted", "time-limit", "failed"),
        (MID + SLURM.format("DUE TO PREEMPTION "), {}, "interrupted", "preempted", "failed"),
        (MID, {"ending": Ending("time-limit", 143, "SIGTERM")}, "interrupted", "time-limit", "failed"),
        (MID + OOM + SLURM.format(""), {}, "failed", None, "failed"),  # that is why it was cancelled
        (MID, {"ending": FAILED}, "unknown-failure", None, "unknown-failure"),
        (MID, {"stalled": True, "now": 1.0}, "stalled", None, "stalled"),
        (END, {"stalled": True, "ending": STOPPED}, "stalled", None, "stalled"),  # ranks still waited
        (END, {"stalled": True, "ending": FINISHED}, "finished", None, "healthy"),
        (TIMED + timed(91, 2, "KeyboardInterrupt"), {}, "finished", None, "healthy"),
        # The counter might count one epoch, because the program did not end after it.
        (TIMED + timed(91, 80, "KeyboardInterrupt"), {}, "interrupted", "user", "healthy"),
        (TIMED + OVER + timed(91, 80, "KeyboardInterrupt"), {}, "finished", None, "healthy"),
    ],
)
def test_each_run_gets_its_verdict(
    catalogue: Catalogue,
    matcher: Matcher,
    text: str,
    known: dict[str, object],
    verdict: str,
    by: str | None,
    old: str,
) -> None:
    reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
    reading.feed([*reader.feed(text.encode()), *reader.finish()])
    found = reading.diagnose(**known)  # type: ignore[arg-type]
    assert (found.verdict, found.interrupted_by) == (verdict, by)
    assert schema_1_verdict(found) == old
    assert found.in_trouble == (old in ("failed", "stalled", "unknown-failure"))
    assert (verdict == "no-evidence") == any(has(note, "diagnosis.no-evidence") for note in found.notes)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_verdict_has_a_distinct_label(language: str) -> None:
    found = [Diagnosis(verdict) for verdict in get_args(Verdict)]
    assert len({render(badge(item), language) for item in found}) == len(found)
    assert all(render(headline(item), language) for item in found)


def test_interrupted_run_is_in_trouble_only_for_a_reason() -> None:
    limit = Primary("slurm-time-limit", "", "cause", "fatal", 0.9, None, "", 0, None, None, [], {}, "", [])
    assert Diagnosis("interrupted", limit, interrupted_by="time-limit").in_trouble
    assert not Diagnosis("interrupted", interrupted_by="user").in_trouble
