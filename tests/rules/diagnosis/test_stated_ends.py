"""The line in a job's log with which ``stallwatch run`` states how the command ended."""

from __future__ import annotations

import pytest
from smallruns import OOM, steps

from stallwatch_rules.end_lines import chosen_end, end_line, own_text, stated_end
from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line

AT = 1_764_400_000.0
GIB = 2**30
HEAD = "".join(f"setting {name} = 1\n" for name in ("rate", "seed", "width", "depth", "heads", "batch size"))
FAILED = Ending("failed", 3, detail=message("run.exited", code=3), seconds=60.0)
KILLED = Ending("killed", 137, "SIGKILL", message("run.ended-signal", signal="SIGKILL"), 60.0)
FINISHED = Ending("finished", 0, seconds=60.0)
INTERRUPTED = Ending("interrupted", 130, "SIGINT", seconds=60.0, quiet=45.0)
ASKED = message("run.passed-on", signal="SIGTERM", how=message("run.status-code", code=1))
MEASURED = MemoryUse(False, GIB, 24 * GIB, {4: 0, 5: 0})
STOPPED = Ending("killed", 1, "SIGTERM", ASKED, 60.0)


def said(ending: Ending, at: float = AT, *, stalled: bool = False) -> str:
    return f"stallwatch: {end_line(ending, at, stalled=stalled)}\n"


def diagnosed(catalogue: Catalogue, matcher: Matcher, text: str, *, starts: bool = True) -> Diagnosis:
    reading = RunReading(catalogue, matcher, starts=starts)
    reading.feed(LineReader("slurm-1.out").feed(text.encode()))
    end = reading.stated_end
    if end is None:
        return reading.diagnose()
    return reading.diagnose(end.ending, stalled=end.stalled, waited=end.ending.quiet)


@pytest.mark.parametrize(
    "ending",
    [
        FAILED,
        KILLED,
        INTERRUPTED,
        STOPPED,
        Ending("oom-killed", 137, "SIGKILL", KILLED.detail, 3.5, memory=MemoryUse(True, 7 * GIB, 8 * GIB)),
        Ending("killed", 137, "SIGKILL", KILLED.detail, 3.5, memory=MemoryUse(None, 7 * GIB, 8 * GIB)),
        Ending("failed", 1, detail=message("run.exited", code=1), seconds=3.5, memory=MEASURED),
        Ending("time-limit", 124, detail=message("run.exited", code=124), seconds=3600.0),
    ],
)
def test_stated_ending_is_read_back(ending: Ending) -> None:
    found = stated_end(Line(said(ending, stalled=True).rstrip(), "slurm-1.out", 7))
    assert found is not None and found.stalled and (found.at, found.number) == (AT, 7)
    read = found.ending
    assert (read.kind, read.exit_code, read.signal, read.seconds, read.quiet, read.memory) == (
        (ending.kind, ending.exit_code, ending.signal, ending.seconds, ending.quiet, ending.memory)
    )
    assert read.detail == ending.detail or ending.kind == "interrupted"


@pytest.mark.parametrize(
    ("ending", "stalled", "verdict"),
    [
        (FAILED, False, "unknown-failure"),
        (KILLED, False, "failed"),
        (FINISHED, False, "finished"),
        (INTERRUPTED, False, "interrupted"),
        (INTERRUPTED, True, "stalled"),
        (STOPPED, True, "stalled"),
    ],
)
def test_verdict_follows_the_stated_ending(
    catalogue: Catalogue, matcher: Matcher, ending: Ending, stalled: bool, verdict: str
) -> None:
    text = HEAD + steps(1, 60, total=200)
    assert diagnosed(catalogue, matcher, text).verdict == "unfinished"
    assert diagnosed(catalogue, matcher, text + said(ending, stalled=stalled)).verdict == verdict


def test_each_start_has_its_own_stated_ending(catalogue: Catalogue, matcher: Matcher) -> None:
    first, second = HEAD + steps(1, 60, total=200), HEAD + steps(1, 80, total=200)
    for ends, verdicts in (
        ((KILLED, FINISHED), ["failed", "finished"]),
        ((FAILED, KILLED), ["unknown-failure", "failed"]),
        ((FAILED, None), ["unknown-failure", "unfinished"]),
    ):
        text = first + said(ends[0]) + second + (said(ends[1], AT + 90) if ends[1] else "")
        found = diagnosed(catalogue, matcher, text)
        assert [start.verdict for start in reversed(found.starts)] == verdicts
        assert found.verdict == verdicts[-1]


def test_newest_start_counts_even_if_starts_are_not_distinguished() -> None:
    first, newest = (stated_end(Line(said(KILLED, at).rstrip(), "slurm-1.out", 7)) for at in (AT, AT + 70))
    assert first is not None and newest is not None
    assert chosen_end(first, newest) is newest and chosen_end(newest, first) is newest


def test_command_that_failed_counts_among_the_hosts(catalogue: Catalogue, matcher: Matcher) -> None:
    text = steps(1, 60, total=200)
    for order in (1, -1):
        lines = [said(STOPPED, AT + 3, stalled=True), said(KILLED, AT), said(FAILED, AT + 2)][::order]
        found = diagnosed(catalogue, matcher, text + "".join(lines))
        assert found.verdict == "failed" and "SIGKILL" in str(found.ending)


def test_stated_ending_of_a_run_that_went_on_is_ignored(catalogue: Catalogue, matcher: Matcher) -> None:
    text = steps(1, 60, total=900) + said(FAILED)
    assert diagnosed(catalogue, matcher, text + steps(61, 65, total=900)).verdict == "unknown-failure"
    assert diagnosed(catalogue, matcher, text + steps(61, 190, total=900)).verdict == "unfinished"


def test_stated_ending_does_not_hide_the_cause(catalogue: Catalogue, matcher: Matcher) -> None:
    found = diagnosed(catalogue, matcher, steps(1, 60, total=200) + OOM + "\n" + said(FAILED))
    assert found.primary is not None and found.primary.rule == "cuda-oom"


@pytest.mark.parametrize(
    "line",
    [
        "stallwatch: ended",
        "stallwatch: ended at=1 seconds=1 kind=exploded code=3 stalled=no",
        "stallwatch: ended at=nan seconds=1 kind=failed code=3 stalled=no",
        "stallwatch: ended at=1 seconds=1 kind=failed code=99999 stalled=no",
        "stallwatch: ended at=1 seconds=1 kind=failed code=3 signal=[red] stalled=no",
        "loss 0.1 stallwatch: ended at=1 seconds=1 kind=failed code=3 stalled=no",
        "stallwatch: How the run ended: killed by SIGKILL, exit code 137, after 1.48 s",
    ],
)
def test_other_lines_state_no_ending(line: str) -> None:
    assert stated_end(Line(line, "slurm-1.out", 7)) is None


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-29T12:00:00.000Z ",
        "2026-11-29 12:00:00,123 ",
        "[node1] ",
        "train-0 training ",
        "Nov 29 10:00:00 ",
    ],
)
def test_ending_behind_an_unknown_prefix_counts(catalogue: Catalogue, matcher: Matcher, prefix: str) -> None:
    report = "stallwatch:  FAILED   A process was killed (SIGKILL)\n"
    lines = [*steps(1, 8).splitlines(keepends=True), report, said(KILLED)]
    found = diagnosed(catalogue, matcher, "".join(prefix + line for line in lines))
    plain = diagnosed(catalogue, matcher, "".join(lines))
    assert [finding.rule for finding in found.findings] == [finding.rule for finding in plain.findings]
    assert found.primary is not None and found.primary.why == plain.primary.why


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/slurmd/job7/slurm_script: line 5: stallwatch: command not found",
        "env: stallwatch: No such file or directory",
        "sh: 1: stallwatch: not found",
        "slurmstepd: error: execve(): stallwatch: No such file or directory",
    ],
)
def test_message_of_a_shell_about_stallwatch_is_not_a_line_of_stallwatch(line: str) -> None:
    assert own_text(line) is None


def test_unknown_ending_is_not_stated() -> None:
    assert end_line(Ending("unknown", None), AT, stalled=True) == ""


@pytest.mark.parametrize(
    ("ranks", "rule"),
    [
        ([[4, 5]], "process-killed-from-outside"),
        ([[0, 1], [4, 5], [2, 3]], "process-killed-from-outside"),
        ([[0, 1]], "host-oom-sigkill"),
        ([[]], "host-oom-sigkill"),
    ],
    ids=str,
)
def test_kill_is_judged_by_the_memory_on_the_host_of_the_killed_rank(
    catalogue: Catalogue, matcher: Matcher, ranks: list[list[int]], rule: str
) -> None:
    """torchrun's prefixes contain local ranks, and its summary contains global ranks."""
    text = HEAD + "".join(f"[default{at % 2}]:{line}\n" for at, line in enumerate(steps(1, 60).splitlines()))
    text += (
        "E1129 16:19:40.652000 12 torch/distributed/elastic/multiprocessing/api.py:1002] failed "
        "(exitcode: -9) local_rank: 0 (pid: 40) of binary: /usr/bin/python\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n"
        "[0]:\n  time      : 2026-11-29_16:19:40\n  host      : n3\n  rank      : 4 (local_rank: 0)\n"
        "  exitcode  : -9 (pid: 40)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 40\n"
        "============================================================\n"
    )
    for at, known in enumerate(ranks):
        memory = MemoryUse(False, GIB, 24 * GIB, dict.fromkeys(known, 0))
        ending = Ending("failed", 1, detail=message("run.exited", code=1), seconds=60.0, memory=memory)
        text += said(ending, AT + at)
    found = diagnosed(catalogue, matcher, text)
    assert found.primary is not None and found.primary.rule == rule
