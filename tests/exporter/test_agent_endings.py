"""The agent at the end of a run: its report, and the outcome of an open stall."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from agentcases import HANG, OOM

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.running.ending import classify
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import Frame, RankAnswer, ThreadStack


def test_healthy_run_prints_nothing(run: Any) -> None:
    run.steps(1, 50)
    run.say("Training completed.")
    run.wait(60)
    diagnosis = run.end("finished", 0)
    assert run.sent == [] and run.notices == []
    assert diagnosis.verdict == "finished"
    assert run.kept("agent.json")["state"] == "finished"
    assert run.kept("diagnosis.json")["verdict"] == "finished"


def test_immediate_crash_sends_one_message(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.now += 0.5
    run.end()
    assert run.changes == [("ended/cuda-oom/1", "resolved", "run-failed")]
    assert run.sent[0].outcome == "crashed"
    assert run.sent[0].severity == "critical" and run.sent[0].step == 10


def test_unknown_failure_is_reported_with_its_exception(run: Any) -> None:
    run.steps(1, 3)
    run.say(
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 7, in <module>',
        "    main()",
        "ValueError: the tokenizer has no chat template",
    )
    run.end()
    (ended,) = run.sent
    assert ended.rule == "unknown-failure"
    assert ended.evidence[-1] == "ValueError: the tokenizer has no chat template"
    assert ended.exception == "ValueError: the tokenizer has no chat template (train.py:7)"


def test_silent_failure_shows_the_last_lines(run: Any) -> None:
    run.steps(1, 10)
    run.end("killed", 137)
    (ended,) = run.sent
    assert ended.evidence[-1] == "step 10/1000 loss 0.2000"
    assert run.kept("agent.json")["ending"]["kind"] == "killed"


def test_stall_that_ends_in_a_kill_has_its_whole_duration(run: Any) -> None:
    run.steps(1, 10)
    run.wait(100)
    run.end("killed", 137)
    stall = HANG + "/1"
    assert run.changes == [(stall, "open", ""), (stall, "resolved", "run-failed")]
    assert (run.sent[-1].kind, run.sent[-1].outcome, run.sent[-1].stalled_seconds) == (
        "ended",
        "crashed",
        100.0,
    )


def test_slow_crash_is_one_message(probed: Any) -> None:
    run, ranks = probed
    run.train(ranks, 10)
    run.say(*OOM)
    ranks[0].event("exception", exception="torch.OutOfMemoryError", message="CUDA out of memory.", frames=[])
    run.wait(5)  # the launcher ends the other rank
    assert run.sent == []
    run.end()
    assert [(each.status, each.outcome, each.rule) for each in run.sent] == [
        ("resolved", "crashed", "cuda-oom")
    ]


def test_fatal_line_is_reported_after_two_seconds(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(1)
    assert run.sent == []
    run.wait(1)
    assert [each.status for each in run.sent] == ["open"]


def test_run_ended_by_the_user_did_not_crash(run: Any) -> None:
    run.steps(1, 10)
    run.wait(100)
    run.agent.end(Ending("killed", 143, "SIGTERM", "It ended."), run.now)
    assert (run.sent[-1].status, run.sent[-1].outcome) == ("resolved", "ended")


TORCHRUN = (
    "W1128 15:44:57.120000 501 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal,"
    " shutting down workers",
    "W1128 15:44:57.121000 501 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 502"
    " closing signal SIGTERM",
)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending("interrupted", 130, "SIGINT"), ()),
        (classify(-15, passed_on=signal.SIGTERM), ()),
        (classify(1, passed_on=signal.SIGTERM), TORCHRUN),
        (classify(-15), ()),
        (classify(-1, passed_on=signal.SIGHUP), ()),
        (Ending("time-limit", 143, "SIGTERM"), ()),
    ],
    ids=["ctrl-c", "sigterm", "torchrun", "kill", "sighup", "time-limit"],
)
def test_stall_ended_by_a_stop_stays_the_incident(
    run: Any, catalogue: Catalogue, ending: Ending, words: tuple[str, ...]
) -> None:
    run.steps(1, 10)
    run.wait(100)
    opened = run.sent[0]
    run.say(*words)
    live = run.agent.end(run.agent.judged(ending), run.now)
    assert run.changes == [(HANG + "/1", "open", ""), (HANG + "/1", "resolved", "run-stopped")]
    closed = run.sent[-1]
    assert (closed.kind, closed.opened_at, closed.outcome) == ("stall", opened.opened_at, "ended")
    assert closed.stalled_seconds == 100.0
    for found in (live, diagnose_paths([run.folder.path], Options(catalogue))[0]):
        assert found.primary is not None
        assert (found.verdict, found.primary.rule) == ("stalled", "silent-hang-no-error")


@pytest.mark.parametrize("kind", ["interrupted", "finished"])
def test_ctrl_c_and_success_are_not_incidents(run: Any, kind: str) -> None:
    run.steps(1, 10)
    run.end(kind, 130 if kind == "interrupted" else 0)
    assert run.sent == []


def test_ctrl_c_long_after_the_last_step_is_mentioned(run: Any) -> None:
    run.steps(1, 30, seconds=1.0)
    run.wait(25)  # shorter than a stall
    diagnosis = run.end("interrupted", 130)
    assert (run.sent, diagnosis.verdict) == ([], "interrupted")
    assert rendered(diagnosis.notes) == [
        "The run was interrupted (Control+C) 25 s after its last step."
        " Steps usually took 1 s, so the run might have been stalled."
    ]


def test_ctrl_c_soon_after_a_step_is_only_an_interruption(run: Any) -> None:
    run.steps(1, 30, seconds=8.0)
    run.wait(20)
    assert rendered(run.end("interrupted", 130).notes) == ["The run was interrupted (Control+C)."]


@pytest.mark.parametrize(
    ("requested", "kind", "shown"),
    [(True, "interrupted", True), (False, "interrupted", True), (False, "finished", False)],
)
def test_stopped_run_shows_where_its_quiet_ranks_were(
    run: Any, requested: bool, kind: str, shown: bool
) -> None:
    run.steps(1, 30, seconds=1.0)
    run.wait(25)
    stack = ThreadStack((Frame("/w/train.py", 7, "reshuffle"),), main=True)
    stacks = fold([RankAnswer(0, 1, "probe", threads=(stack,))], time=0.0, seconds=0.1)
    run.agent._suspicion.seen = stacks, run.now
    if requested:  # the ranks leave their calls
        run.agent.stop_requested(run.now)
        run.wait(5)
    found = run.end(kind, 130 if kind == "interrupted" else 0)
    assert found.verdict == kind
    assert rendered(found.digest) == (["Rank 0 is at train.py:7 in reshuffle."] if shown else [])


@pytest.mark.parametrize(
    ("before", "note"), [(4.0, "The run was interrupted (Control+C)."), (25.0, "25 s after its")]
)
def test_time_after_ctrl_c_does_not_count_as_waiting(
    run: Any, catalogue: Catalogue, before: float, note: str
) -> None:
    """The run saves without output; a diagnosis of its folder gives the same result later."""
    run.steps(1, 30, seconds=1.0)
    run.wait(before)
    run.agent.stop_requested(run.now)
    run.wait(75)
    ending = run.agent.judged(Ending("interrupted", 130))
    (found,) = rendered(run.agent.end(ending, run.now).notes)
    (kept,) = rendered(diagnose_paths([run.folder.path], Options(catalogue)))[0].notes
    assert note in found and note in kept
    run.steps(31, 32)  # training continued, so the next Ctrl-C counts separately
    assert run.agent.judged(ending).quiet is not None
    run.steps(33, 34)
    assert run.agent.advance.judged(Ending("interrupted", 130)).quiet is None


def test_removed_agent_leaves_incidents_open(run: Any) -> None:
    run.steps(1, 10)
    run.wait(40)
    run.end("unknown", None)
    assert {change[1] for change in run.changes} == {"open"}
