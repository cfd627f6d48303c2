"""A run that dies of a reported cause has one incident, and no part of it is resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from agentcases import OOM

from stallwatch_exporter.incident import Incident, Severity
from stallwatch_exporter.watching.alarms import Alarms
from stallwatch_exporter.watching.incidents import IncidentManager, read_incidents
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Primary, Progress
from stallwatch_rules.stacks.records import StackGroup, StallStacks

CRASH = Ending("failed", 1, None, "It ended.")
PRIMARY = Primary(
    rule="",
    title="The title",
    role="cause",
    harm="fatal",
    confidence=0.9,
    rank=1,
    file="",
    line=1,
    time=None,
    step=10,
    evidence=["a line of the log"],
    captures={},
    why="Why.",
    fixes=["Fix."],
)
OPEN_OOM = "stallwatch_incident_open{rule=cuda-oom,severity=critical}"


class Book:
    """Alarms without an agent, and their notifications."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.sent: list[Incident] = []
        self.book = IncidentManager("job", "node-1", self.sent.append)
        self.alarms = Alarms(self.book, catalogue)

    def end(
        self, cause: str | None, step: int, ending: Ending = CRASH
    ) -> list[tuple[str, str, str, str, str]]:
        """End the run at `step` for this cause; return the notifications."""
        primary = msgspec.structs.replace(PRIMARY, rule=cause) if cause else None
        before = len(self.sent)
        found = Diagnosis("failed", primary=primary, progress=Progress(last_step=step))
        self.alarms.ended(ending, found, ["a line"], None, 200.0)
        return [(each.id, each.kind, each.rule, each.status, each.resolution) for each in self.sent[before:]]


@pytest.fixture
def dying(catalogue: Catalogue) -> Book:
    return Book(catalogue)


def test_finding_and_failure_are_one_incident(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(2)
    opened = run.sent[0].opened_at
    assert run.metric(OPEN_OOM) == 1
    run.end()
    first, last = run.sent[0], run.sent[-1]
    assert {each.id.split("/", 1)[1] for each in run.sent} == {"finding/cuda-oom/1"}
    assert [each.status for each in run.sent] == ["open", "resolved"]
    assert (first.kind, last.kind, last.rule, last.opened_at) == ("finding", "ended", "cuda-oom", opened)
    assert last.ending is not None and last.became_end and not first.became_end
    assert run.metric(OPEN_OOM) == 1  # the alert of this rule continues to fire


@pytest.mark.parametrize(("step", "one"), [(10, True), (9, True), (3, False)])
def test_new_cause_continues_a_finding_without_later_steps(dying: Book, step: int, one: bool) -> None:
    dying.book.open("finding", "rank-gone", "critical", 100.0, step=step, rank=0)
    found = dying.end("process-segfault", 10)
    if one:
        assert found == [("job/finding/rank-gone/1", "ended", "process-segfault", "open", "")]
    else:
        assert found == [
            ("job/finding/rank-gone/1", "finding", "rank-gone", "resolved", "run-failed"),
            ("job/ended/process-segfault/1", "ended", "process-segfault", "open", ""),
        ]


def test_same_cause_continues_an_old_finding(dying: Book) -> None:
    dying.book.open("finding", "rank-gone", "critical", 150.0, step=10)
    dying.book.open("finding", "loss-nan", "critical", 100.0, step=3)
    assert [item[:4] for item in dying.end("loss-nan", 10)] == [
        ("job/finding/rank-gone/1", "finding", "rank-gone", "resolved"),
        ("job/finding/loss-nan/1", "ended", "loss-nan", "open"),
    ]


@pytest.mark.parametrize(("severity", "harm"), [("warning", "degrading"), ("critical", "degrading")])
def test_slowdown_is_not_the_cause_of_a_failure(dying: Book, severity: Severity, harm: str) -> None:
    dying.book.open("finding", "step-time-rising", severity, 100.0, step=10, harm=harm)
    assert [item[3:] for item in dying.end("cuda-oom", 10)] == [("resolved", "run-failed"), ("open", "")]


def test_unknown_failure_does_not_replace_a_known_cause(dying: Book) -> None:
    dying.book.open("finding", "cuda-oom", "critical", 100.0, step=10, rank=3, evidence=["OutOfMemoryError"])
    assert dying.end(None, 10) == [("job/finding/cuda-oom/1", "ended", "cuda-oom", "open", "")]
    assert (dying.sent[-1].rank, dying.sent[-1].evidence) == (3, ["OutOfMemoryError"])
    assert dying.sent[-1].ending == CRASH


def test_interrupted_run_has_not_failed(dying: Book) -> None:
    dying.book.open("finding", "loss-nan", "critical", 100.0, step=10)
    found = dying.end("loss-nan", 10, Ending("interrupted", 130))
    assert found == [("job/finding/loss-nan/1", "finding", "loss-nan", "resolved", "run-stopped")]


def test_episode_numbers_continue_after_a_failure(dying: Book) -> None:
    dying.book.open("finding", "rank-gone", "critical", 100.0, step=10)
    dying.end("cuda-oom", 10)
    again = IncidentManager("job", "node-1", dying.sent.append, dying.sent[-1:])
    assert again.all_open == []  # nothing follows the end of a run
    assert again.open("finding", "rank-gone", "critical", 300.0).id == "job/finding/rank-gone/2"


def test_journal_keeps_the_first_id_of_an_incident(run: Any, tmp_path: Path) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(2)
    run.end()
    (kept,) = read_incidents(run.agent.folder.path)
    assert (kept.kind, kept.began_as) == ("ended", ("finding", "cuda-oom"))


def test_stall_with_another_explanation_keeps_its_id(dying: Book) -> None:
    stall = dying.book.open("stall", "zero3-trace-cache-invalidated", "critical", 100.0, step=10, count=7)
    groups = [StackGroup([0], "collective", what="all_reduce"), StackGroup([1], "code", place="t.py:5 in f")]
    silent = msgspec.structs.replace(PRIMARY, rule="silent-hang-no-error")
    found = Diagnosis("stalled", primary=silent, progress=Progress(last_step=10))
    dying.alarms.located(StallStacks(0.0, 0.1, groups, [1], "elsewhere"), found, 101.0)
    last = dying.sent[-1]
    assert (last.id, last.rule, last.count, last.rank) == (stall.id, "silent-hang-no-error", 1, 1)
    dying.alarms.recovered(40.0, Progress(last_step=11), "train", 140.0)
    assert dying.sent[-1].status == "resolved" and dying.book.all_open == []
