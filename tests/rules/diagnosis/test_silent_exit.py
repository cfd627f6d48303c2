"""A rank that ended first without a message is named if its launcher names it and no error is its own."""

from __future__ import annotations

import pytest
from smallruns import stamped

from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import headline

STEPS = "".join(f"[rank0]: step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 21))
PEER = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/w/train.py", line 8, in <module>
[rank{rank}]:     loss.backward()
[rank{rank}]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46824.
"""
OTHER = PEER.replace(
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer", "ValueError:"
)
TORCHRUN = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
train.py FAILED
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 23470)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 23471)
  error_file: <N/A>
"""


def diagnose(catalogue: Catalogue, text: str, code: int = 1, *, stalled: bool = False) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    ending = Ending("failed", code, detail=message("run.exited", code=code))
    return reading.diagnose(ending=ending, stalled=stalled)


def ended(catalogue: Catalogue, text: str, language: str = "en", code: int = 1) -> Diagnosis:
    return rendered(diagnose(catalogue, text, code), language)


def rule_of(found: Diagnosis) -> str:
    return found.primary.rule if found.primary is not None else ""


def texts_about_exit(found: Diagnosis) -> list[str]:
    fixes = found.primary.fixes if found.primary is not None else []
    return [text for text in (*fixes, *found.notes) if "SystemExit" in text]


def test_silent_exit_causes_errors_of_peers(
    catalogue: Catalogue,
) -> None:
    found = ended(catalogue, STEPS + PEER.format(rank=0) + TORCHRUN.format(code=3))
    assert found.primary is not None and found.verdict == "failed"
    assert (found.primary.rule, found.primary.role, found.primary.rank) == ("rank-left-early", "cause", 1)
    assert found.findings[0].note.startswith("Rank 1 ended first, with exit status 3.")
    assert found.primary.evidence == ["exitcode  : 3 (pid: 23471)"]
    assert (found.primary.step, found.progress.stalled_after_step) == (20, None)
    assert "gloo-connection-closed" in [finding.rule for finding in found.findings]


def test_exit_status_of_a_rank_in_another_log_is_a_note(catalogue: Catalogue) -> None:
    text = STEPS + PEER.format(rank=0) + TORCHRUN.format(code=1)
    assert rule_of(ended(catalogue, text)) == "gloo-connection-closed", "not a line of rank 1 was read"
    assert rule_of(ended(catalogue, "[rank1]: loading\n" + text)) == "rank-left-early", "all of it was"
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    found = rendered(reading.diagnose())
    assert found.primary is not None and found.primary.rule == "gloo-connection-closed"
    assert found.primary.fixes[0].startswith("Rank 1 ended first, with exit status 1.")
    assert len(texts_about_exit(found)) == 1


@pytest.mark.parametrize("error", ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."])
def test_other_failure_of_a_rank_remains_the_cause(catalogue: Catalogue, error: str) -> None:
    found = ended(catalogue, STEPS + f"[rank2]: {error}\n" + PEER.format(rank=0) + TORCHRUN.format(code=3))
    assert rule_of(found) == "cuda-oom"


def test_silent_exit_known_only_from_the_launcher(catalogue: Catalogue) -> None:
    found = ended(catalogue, STEPS + TORCHRUN.format(code=1))
    assert found.verdict == "unknown-failure"
    assert [note for note in found.notes if note.startswith("Rank 1 ended first, with exit status 1.")]
    (chinese,) = texts_about_exit(ended(catalogue, STEPS + TORCHRUN.format(code=1), "zh"))
    assert chinese.startswith("rank 1 最先退出，退出码 1")


@pytest.mark.parametrize(
    "text",
    [
        PEER.format(rank=1) + TORCHRUN.format(code=1),  # an error of its own, if only a symptom
        OTHER.format(rank=1) + TORCHRUN.format(code=1),
        PEER.replace("[rank{rank}]: ", "") + TORCHRUN.format(code=1),  # anybody's
        PEER.format(rank=0) + TORCHRUN.format(code=-11),  # a signal
        PEER.format(rank=0) + TORCHRUN.format(code=137),
        PEER.format(rank=0),  # the first rank is unknown
    ],
)
def test_explained_exit_is_not_silent(catalogue: Catalogue, text: str) -> None:
    assert texts_about_exit(ended(catalogue, STEPS + text)) == []


def test_single_command_that_exits_silently(catalogue: Catalogue) -> None:
    found = ended(catalogue, STEPS)
    assert found.verdict == "unknown-failure" and len(texts_about_exit(found)) == 1
    assert found.notes[-1].startswith("No signal ended the command, and no exception")


@pytest.mark.parametrize(
    "text", ["no data left in the queue: giving up", "watchdog: no progress for 300 s, aborting"]
)
def test_stall_that_a_program_ended_itself_is_reported_with_its_message(
    catalogue: Catalogue, text: str
) -> None:
    """A watchdog's message looks like any other: the stall remains the finding."""
    rows = [(float(step), f"step {step} loss {2 / step:.4f}") for step in range(1, 41)]
    rows += [(41.0, "waiting for data"), (400.0, text)]
    found = diagnose(catalogue, stamped(rows), stalled=True)
    assert rule_of(found) == "silent-hang-no-error"
    (note,) = [note for note in rendered(found).notes if "last message" in note]
    assert text in note


@pytest.mark.parametrize(
    "at_exit",
    [
        "wandb: Find logs at: ./wandb/run-1/logs",
        "Exception ignored in: <function Loader.__del__ at 0x7f>",
        "[W1128 12:00:00 ProcessGroupNCCL.cpp:1250] destroy_process_group() was not called",
        "  warnings.warn('resource_tracker: There appear to be 2 leaked objects')",
    ],
)
def test_messages_of_libraries_at_exit_are_not_the_last_message(catalogue: Catalogue, at_exit: str) -> None:
    found = diagnose(catalogue, f"{STEPS}no data left\n{at_exit}\n")
    assert render(headline(found)) == "The program ended with exit code 1. Its last message: no data left"


def test_message_before_the_last_step_is_not_the_last_message(catalogue: Catalogue) -> None:
    assert "last message" not in "".join(ended(catalogue, "loading the data set\n" + STEPS).notes)


def test_missing_command_has_its_own_advice(catalogue: Catalogue) -> None:
    for code in (126, 127):
        said = ended(catalogue, "bash: line 1: pythn: command not found\n", code=code)
        assert said.primary is not None and said.primary.rule == "program-not-found"
        notes = ended(catalogue, "Starting the job\n", code=code).notes
        assert notes[-1].startswith("A shell exits with 127") and "sys.exit" not in "".join(notes)
    assert "sys.exit" in ended(catalogue, STEPS, code=125).notes[-1]
