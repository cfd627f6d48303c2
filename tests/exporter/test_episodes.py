"""Problems of a run are folded into one incident per episode."""

from __future__ import annotations

from typing import Any

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.watching.episodes import Episodes, folded
from stallwatch_rules.endings import Ending
from stallwatch_rules.judgements.concerns import CHECKPOINT
from stallwatch_rules.messages import message
from stallwatch_rules.stacks.records import StackGroup, StallStacks

CRASH = Ending("failed", 1, None, "It ended.")
STACKS = StallStacks(0.0, 0.1, [StackGroup([1], "code", place="t.py:5 in f")], [1], "elsewhere")


def trouble(kind: str, rule: str, at: float, severity: str = "critical", **facts: Any) -> Incident:
    given: dict[str, Any] = {
        "id": f"job/{kind}/{rule}/1",
        "run": "job",
        "kind": kind,
        "rule": rule,
        "severity": severity,
        "status": "open",
        "episode": 1,
        "opened_at": at,
        "updated_at": at,
        "step": 10,
    }
    return Incident(**{**given, **facts})


def over(one: Incident, at: float, resolution: Any = "recovered", **facts: Any) -> Incident:
    return msgspec.structs.replace(
        one, status="resolved", resolution=resolution, resolved_at=at, updated_at=at, **facts
    )


class Story:
    """Sink that records incidents."""

    def __init__(self) -> None:
        self.sent: list[Incident] = []
        self.episodes = Episodes(self.sent.append)

    def see(self, *troubles: Incident) -> None:
        for trouble in troubles:
            self.episodes.take(trouble)
        self.episodes.flush()

    @property
    def stages(self) -> list[tuple[str, str, str]]:
        return list(dict.fromkeys((item.id, item.stage, item.outcome or "") for item in self.sent))


def test_warning_stall_and_crash_are_one_incident() -> None:
    story = Story()
    slow = trouble("finding", "step-time-rising", 100.0, "warning", step=5)
    stall = trouble(
        "stall", "silent-hang-no-error", 900.0, step=300, stalled_seconds=30.0, rank=1, stacks=STACKS
    )
    story.see(slow)
    story.see(stall)
    died = trouble("ended", "nccl-watchdog-timeout", 990.0, step=300, ending=CRASH)
    story.see(over(stall, 990.0, "run-failed", stalled_seconds=90.0), over(slow, 990.0, "run-failed"), died)
    name = "job/finding/step-time-rising/1"
    assert story.stages == [(name, "open", ""), (name, "worse", ""), (name, "resolved", "crashed")]
    last = story.sent[-1]
    assert (last.kind, last.rule, last.severity) == ("ended", "nccl-watchdog-timeout", "critical")
    assert (last.stalled_seconds, last.stacks, last.rank) == (90.0, STACKS, 1)
    assert [(event.what, event.rule) for event in last.history] == [
        ("opened", "step-time-rising"),
        ("opened", "silent-hang-no-error"),
        ("stacks", "silent-hang-no-error"),
        ("closed", "nccl-watchdog-timeout"),
    ]
    assert last.concerns(kind="stall") and last.concerns(rule="step-time-rising")
    assert not last.concerns(kind="stall", rule="step-time-rising")


def test_recovered_stall_closes_its_episode() -> None:
    story = Story()
    stall = trouble("stall", "silent-hang-no-error", 100.0)
    story.see(stall)
    again = trouble("stall", "silent-hang-no-error", 200.0, id="job/stall/silent-hang-no-error/2")
    story.see(over(stall, 200.0), again)
    assert story.stages == [
        ("job/stall/silent-hang-no-error/1", "open", ""),
        ("job/stall/silent-hang-no-error/1", "resolved", "recovered"),
        ("job/stall/silent-hang-no-error/2", "open", ""),
    ]


def test_open_warning_does_not_keep_a_critical_incident_open() -> None:
    story = Story()
    slow = trouble("finding", "step-time-rising", 100.0, "warning")
    stall = trouble("stall", "silent-hang-no-error", 200.0)
    story.see(slow)
    story.see(stall)
    story.see(over(stall, 300.0))
    assert (story.sent[-1].status, story.sent[-1].outcome) == ("resolved", "recovered")
    count = len(story.sent)
    story.see(msgspec.structs.replace(slow, count=7, updated_at=400.0))
    story.see(over(slow, 500.0))
    assert len(story.sent) == count


def test_stall_long_after_another_alarm_is_a_new_episode() -> None:
    story = Story()
    story.see(trouble("finding", "loss-nan", 100.0, step=10))
    story.see(trouble("stall", "silent-hang-no-error", 130.0, step=12))
    story.see(trouble("finding", "cuda-oom", 5000.0, step=900))
    assert len({item.id for item in story.sent}) == 2


def test_broken_checkpoint_does_not_hide_a_stall() -> None:
    story = Story()
    note = message(f"concern.{CHECKPOINT}")
    story.see(trouble("finding", "checkpoint-archive-corrupt", 100.0, note=note))
    story.see(trouble("stall", "silent-hang-no-error", 130.0))
    assert [item.stage for item in story.sent] == ["open", "open"]
    assert len({item.id for item in story.sent}) == 2


def test_late_stacks_are_an_update() -> None:
    story = Story()
    stall = trouble("stall", "silent-hang-no-error", 100.0)
    story.see(stall)
    story.see(msgspec.structs.replace(stall, stacks=STACKS, rank=1, updated_at=105.0))
    assert [(item.stage, item.rank) for item in story.sent] == [("open", None), ("open", 1)]
    assert story.sent[-1].history[-1].what == "stacks"


def test_journal_combines_to_the_reported_incident() -> None:
    story = Story()
    stall = trouble("stall", "silent-hang-no-error", 100.0, stacks=STACKS)
    died = trouble("ended", "process-killed", 200.0, ending=CRASH)
    journal = [stall, over(stall, 200.0, "run-failed"), died]
    story.see(stall)
    story.see(*journal[1:])
    assert folded(journal) == [story.sent[-1]]
    resumed: list[Incident] = []
    episodes = Episodes(resumed.append, [stall])
    episodes.flush()
    assert resumed == []
    episodes.take(over(stall, 160.0))
    episodes.flush()
    assert [(item.id, item.outcome) for item in resumed] == [(stall.id, "recovered")]
