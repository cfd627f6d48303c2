"""State and row of a run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_dashboard.data.overview import (
    Agent,
    Numbers,
    RunRow,
    as_one,
    began,
    in_order,
    lasted,
    later_attempt,
    make_row,
    newest,
    state_from_log,
    state_of,
)
from stallwatch_dashboard.data.summaries import summary_of
from stallwatch_exporter.incident import Event, Incident
from stallwatch_exporter.runs.runfolder import AgentInfo
from stallwatch_rules.endings import Ending, EndingKind
from stallwatch_rules.records import Primary, Progress

NOW = 1_795_000_000.0


def info(**changes: Any) -> AgentInfo:
    fields: dict[str, Any] = {
        "run": "r",
        "pid": 1,
        "host": "node",
        "command": ["torchrun", "train.py"],
        "cwd": "/",
        "started_at": NOW - 100,
        "updated_at": NOW,
        "state": "training",
        **changes,
    }
    return AgentInfo(**fields)


def state(given: AgentInfo | None, incidents: list[Incident] | None = None, **changes: Any) -> str:
    options: dict[str, Any] = {"alive": True, "answers": True, "now": NOW, "step": 5.0, **changes}
    return state_of(given, incidents=incidents or [], **options)


def test_state_follows_record_and_metrics() -> None:
    assert state(info()) == "training"
    assert state(info(state="starting"), step=None) == "starting"
    assert state(info(state="starting"), step=0.0) == "starting"
    assert state(info(), step=None) == "training", "a log without step numbers"
    assert state(None, step=None, loss=0.5) == "training"
    assert state(info(state="stalled")) == "stalled"
    assert state(info(state="finished", ended_at=NOW)) == "finished"
    assert state(info(state="failed", ended_at=NOW)) == "failed"


def test_secret_in_the_name_of_a_host_is_masked() -> None:
    found = info(host="hf_" + "aBcDeFgHiJ" * 3 + "kLmN")
    row = make_row("r", found, Numbers(step=5.0), [], alive=True, answers=True, seen=NOW, now=NOW)
    assert row.host == "hf_***"


@pytest.mark.parametrize(
    ("kind", "sign", "recorded", "shown"),
    [
        ("interrupted", "SIGINT", "failed", "interrupted"),  # as version 0.1 recorded it
        ("killed", "SIGTERM", "finished", "interrupted"),
        ("killed", "SIGTERM", "failed", "failed"),  # it had failed before
        ("time-limit", "SIGTERM", "finished", "interrupted"),
        ("killed", "SIGKILL", "failed", "failed"),
        ("finished", None, "finished", "finished"),
    ],
)
def test_run_stopped_from_outside_is_interrupted_unless_it_had_failed(
    kind: EndingKind, sign: str | None, recorded: str, shown: str
) -> None:
    ending = Ending(kind=kind, exit_code=143, signal=sign)
    assert state(info(state=recorded, ended_at=NOW, ending=ending)) == shown


def test_interrupted_scraped_run_did_not_fail() -> None:
    numbers = Numbers(step=5.0, ended_at=NOW, ended_as="interrupted")
    assert (
        make_row("far", None, numbers, [], alive=True, answers=True, seen=NOW, now=NOW).state == "interrupted"
    )


def test_unwatched_run_neither_finished_nor_failed() -> None:
    ending = Ending(kind="unknown", exit_code=None, detail="Stallwatch stopped watching the run.")
    assert state(info(state="finished", ended_at=NOW, ending=ending)) == "unwatched"
    numbers = Numbers(step=5.0, ended_at=NOW, ended_as="unknown")
    assert (
        make_row("far", None, numbers, [], alive=True, answers=True, seen=NOW, now=NOW).state == "unwatched"
    )


@pytest.mark.parametrize(
    ("verdict", "finished", "expected"),
    [
        ("healthy", False, "unwatched"),
        ("healthy", True, "finished"),
        ("finished", True, "finished"),
        ("unfinished", False, "unwatched"),
        ("interrupted", False, "interrupted"),
        ("failed", False, "failed"),
        ("unknown-failure", True, "failed"),
        ("", False, "unwatched"),
    ],
)
def test_end_of_an_unwatched_run_comes_from_its_log(verdict: str, finished: bool, expected: str) -> None:
    assert state_from_log(verdict, Progress(1, 50, 500, 1.4, finished=finished)) == expected


def test_open_stall_incident_makes_the_run_stalled(
    make_incident: Callable[..., Incident],
) -> None:
    assert state(None, [make_incident()]) == "stalled"
    assert state(info(), [make_incident(status="resolved")]) == "training"


def test_degrading_finding_makes_the_run_degraded(make_incident: Callable[..., Incident]) -> None:
    slower = make_incident(kind="finding", harm="degrading", severity="warning")
    assert state(info(), [slower]) == "degraded"
    assert state(info(), [make_incident(kind="finding", harm="harmless", severity="info")]) == "training"


@pytest.mark.parametrize(
    ("age", "changes"),
    [(101, {"answers": False}), (0, {"alive": False}), (0, {"alive": False, "answers": False})],
)
def test_run_without_recent_reports_is_stale(age: float, changes: dict[str, Any]) -> None:
    assert state(info(state="stalled", updated_at=NOW - age), **changes) == "stale"
    assert state(info(state="failed", ended_at=NOW - 500, updated_at=NOW - age), **changes) == "failed"


def test_incident_of_a_lost_agent_stays_with_the_run(make_incident: Callable[..., Incident]) -> None:
    lost = make_incident(status="resolved", resolution="unknown")
    found = make_row(
        "r", info(state="stalled"), Numbers(), [lost], alive=False, answers=False, seen=NOW - 60, now=NOW
    )
    assert (found.state, found.incident) == ("stale", lost)


def test_records_of_this_host_become_stale_sooner() -> None:
    def by_record(host: str, age: float) -> str:
        return state(info(host=host, updated_at=NOW - age), answers=False)

    here = socket.gethostname()
    assert [by_record(here, age) for age in (9.9, 11.0)] == ["training", "stale"]
    assert [by_record("node", age) for age in (99.0, 101.0)] == ["training", "stale"]


def test_responding_agent_is_not_stale() -> None:
    assert state(info(updated_at=NOW - 500)) == state(None) == "training"
    assert state(None, answers=False) == "stale"


def test_stall_is_the_most_important_incident(make_incident: Callable[..., Incident]) -> None:
    stall = make_incident(opened_at=NOW - 50)
    warning = make_incident(kind="finding", severity="warning", opened_at=NOW)
    assert newest([warning, stall]) is stall
    assert newest([make_incident(status="resolved")]) is None


def test_total_steps_come_from_the_incident_if_metrics_lack_them(
    make_incident: Callable[..., Incident],
) -> None:
    row = make_row(
        "r", info(), Numbers(step=57.0), [make_incident()], alive=True, answers=True, seen=NOW, now=NOW
    )
    assert (row.step, row.total_steps, row.state) == (57.0, 900, "stalled")
    assert len(row.open_incidents) == 1


@pytest.mark.parametrize(
    ("silent", "changes", "state"),
    [
        (882.0, {}, "waiting"),
        (59.0, {}, "training"),
        (882.0, {"phase": "eval"}, "training"),
        # as long as the time since the previous line of the log
        (882.0, {"stepping_seconds": 900.0}, "training"),
        (882.0, {"step_seconds": 60.0}, "training"),
        (882.0, {"step": None, "step_seconds": None}, "waiting"),  # a log without step numbers
        (882.0, {"step_seconds": None}, "waiting"),  # lines from before the agent started
        (190.0, {"step_seconds": None}, "waiting"),
        (95.0, {"step_seconds": None}, "training"),
    ],
)
def test_quiet_run_without_a_learned_threshold_is_waiting(
    silent: float, changes: dict[str, Any], state: str
) -> None:
    few: dict[str, Any] = {
        "step": 3.0,
        "total_steps": 2000.0,
        "step_seconds": 0.25,
        "phase": "train",
        **changes,
    }
    numbers = Numbers(progressed_at=NOW - silent, alarm_at=NOW - silent + 1800, **few)
    row = make_row("r", info(), numbers, [], alive=True, answers=True, seen=NOW, now=NOW)
    assert row.state == state
    assert (row.seconds_left is not None) == (state == "training" and row.step_seconds is not None)


def test_row_shows_ending_and_duration() -> None:
    ending = Ending(kind="oom-killed", exit_code=137, signal="SIGKILL", detail="the kernel killed it")
    found = info(state="failed", ended_at=NOW - 40, ending=ending)
    row = make_row("r", found, Numbers(), [], alive=False, answers=False, seen=NOW - 40, now=NOW)
    assert (row.ending, row.seconds(NOW)) == (ending, 60)


@pytest.mark.parametrize(("harm", "cause"), [("degrading", ""), ("fatal", "straggler-slow-node")])
def test_open_warning_is_not_the_cause_of_a_failure(
    make_incident: Callable[..., Incident], harm: str, cause: str
) -> None:
    open_then = make_incident(kind="finding", rule="straggler-slow-node", harm=harm, severity="warning")
    found = info(state="failed", ended_at=NOW - 40, ending=Ending(kind="failed", exit_code=1))
    row = make_row("r", found, Numbers(), [open_then], alive=False, answers=False, seen=NOW - 40, now=NOW)
    assert (row.incident, row.cause) == (open_then, cause)


def test_restarted_job_is_no_longer_failed() -> None:
    died = {"ended_at": NOW - 60, "state": "failed", "ending": Ending(kind="failed", exit_code=1), "step": 90}
    agents = [
        Agent(Path("r"), info(key="k", host="n1", started_at=NOW - 900, **died)),
        Agent(
            Path("r+n2"), info(key="k", host="n2", started_at=NOW - 899, **(died | {"ended_at": NOW - 20}))
        ),
        Agent(Path("r+n1"), info(key="k", host="n1", started_at=NOW - 50, step=3)),
        Agent(Path("r+n2.2"), info(key="k", host="n2", started_at=NOW - 10)),
    ]
    found = as_one(agents)
    assert found is not None
    assert (found.state, found.step, found.ended_at, found.started_at) == ("training", 3, None, NOW - 50)


def test_runs_that_need_attention_are_listed_first(make_incident: Callable[..., Incident]) -> None:
    stall, slower = make_incident(), make_incident(kind="finding", severity="warning")
    rows = [
        RunRow("old", "failed", started_at=1.0, ended_at=2.0),
        RunRow("fine", "training", started_at=5.0),
        RunRow("stuck", "stalled", started_at=3.0),
        RunRow("recent", "finished", started_at=3.0, ended_at=9.0),
        RunRow("by hand", "interrupted", started_at=3.0, ended_at=12.0),
        RunRow("slow", "interrupted", started_at=3.0, ended_at=11.0, incident=slower),
        RunRow("hung", "interrupted", started_at=3.0, ended_at=8.0, incident=stall),
        RunRow("left", "unwatched", started_at=3.0, ended_at=7.0, incident=stall),
        RunRow("lost", "stale", started_at=4.0),
    ]
    live, ended = ["stuck", "lost", "fine"], ["hung", "left", "old", "by hand", "slow", "recent"]
    assert [row.run for row in in_order(rows)] == live + ended


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (Numbers(step=5.0), "training"),
        (Numbers(step=5.0, overdue=True), "stalled"),
        (Numbers(step=5.0, overdue=True, ended_at=NOW - 1, ended_as="finished"), "finished"),
        (Numbers(step=5.0, ended_at=NOW - 1, ended_as="oom-killed"), "failed"),
    ],
)
def test_state_of_a_remote_run_comes_from_its_metrics(numbers: Numbers, expected: str) -> None:
    row = make_row("far", None, numbers, [], alive=True, answers=True, seen=NOW, now=NOW)
    assert row.state == expected and row.ended_at == numbers.ended_at


@pytest.mark.parametrize(
    ("stalled", "overdue"),
    [(0.0, False), (1.0, True), (None, True)],
    ids=["patient", "stalled", "an old agent"],
)
def test_stalled_state_is_that_published_by_the_agent(stalled: float | None, overdue: bool) -> None:
    """An agent of version 0.1 publishes only its threshold."""
    latest: dict[str, dict[tuple[int | None, str], float]] = {
        "last_progress_timestamp_seconds": {(None, ""): NOW - 60},
        "stall_threshold_seconds": {(None, '{"phase": "train"}'): 30.0},
        "phase": {(None, '{"stallwatch_phase": "train"}'): 1.0},
    }
    if stalled is not None:
        latest["stalled"] = {(None, ""): stalled}
    assert summary_of(latest, Numbers(), now=NOW).overdue is overdue


FINDING = Event(1030.0, "opened", "finding", "step-time-degraded", "warning")
STALL = Event(1060.0, "opened", "stall", "silent-hang-no-error", "critical")


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"stalled_seconds": 47.0, "opened_at": 1030.0, "resolved_at": 1047.0, "status": "resolved"}, 47.0),
        ({"stalled_seconds": 30.0, "opened_at": 1030.0, "updated_at": 1030.0}, 100.0),
        ({"history": [FINDING, STALL], "stalled_since": 1050.0, "stalled_seconds": 15.0}, 50.0),
        (
            {
                "history": [FINDING, STALL],
                "stalled_since": None,  # as in a record of 0.2.0
                "threshold_seconds": 10.0,
                "stalled_seconds": 15.0,
            },
            50.0,
        ),
        ({"kind": "finding", "opened_at": 1030.0, "resolved_at": 1047.0, "status": "resolved"}, 17.0),
        ({"kind": "ended", "opened_at": 1030.0, "updated_at": 1030.0}, None),
        ({"id": "stuck/finding/x/1", "kind": "ended", "opened_at": 1030.0, "updated_at": 1035.0}, 5.0),
    ],
    ids=[
        "stall",
        "open stall",
        "stall that joined",
        "stall that joined in 0.2.0",
        "finding",
        "end",
        "finding that the run died of",
    ],
)
def test_duration_of_an_incident_starts_at_the_last_step(
    make_incident: Callable[..., Incident], changes: dict[str, Any], seconds: float | None
) -> None:
    assert lasted(make_incident(**changes), 1100.0) == seconds


@pytest.mark.parametrize(
    ("time", "start"),
    [
        ("1970-01-01T00:16:40.000Z", 1000.0),
        ("1970-01-01T00:20:00.000Z", 1030.0),  # later than the incident
        ("1970-01-01T00:16:40.000", 1030.0),  # in an unknown zone
        ("soonZ", 1030.0),
        (None, 1030.0),
    ],
)
def test_problem_began_at_the_first_line_of_its_cause(
    make_incident: Callable[..., Incident], time: str | None, start: float
) -> None:
    nan = Primary("loss-nan", "", "cause", "fatal", 0.9, None, "stdout", 62, time, 61, [], {}, "", [])
    incident = make_incident(kind="finding", rule="loss-nan", opened_at=1030.0, primary=nan)
    assert began(incident) == start


@pytest.mark.parametrize(
    ("run", "later"),
    [("sft", "sft-5"), ("sft-3", "sft-5"), ("sft-5", None), ("exp-2", None), ("other", None), ("gone", None)],
)
def test_newest_attempt_of_a_name_is_found(run: str, later: str | None) -> None:
    names = ["exp-3", "sft-5", "sft-05", "sft-x", "exp-2", "sft-3", "other", "sft-2", "sft"]  # newest first
    assert later_attempt(run, names) == later


def test_row_shows_goodput_headroom_and_remaining_time() -> None:
    row = RunRow(
        "r",
        "training",
        step=50,
        total_steps=100,
        step_seconds=2.0,
        stepping_seconds=450.0,
        host_memory_bytes=6.0,
        host_memory_limit_bytes=10.0,
        invalidations=25,
        started_at=NOW - 900,
    )
    assert row.seconds_left == 100.0
    assert row.goodput(NOW) == 0.5
    assert row.headroom == 4.0
    assert row.invalidations_per_step == 0.5
    unnumbered = RunRow("r", "training", started_at=NOW - 100, stepping_seconds=0.0)
    assert unnumbered.goodput(NOW) is None, "steps without numbers are not timed"
    assert RunRow("r", "finished").seconds_left is None and RunRow("r", "starting").goodput(NOW) is None
