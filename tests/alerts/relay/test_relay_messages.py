"""A relay's message about an alert: the diagnosis of its incident, or the text of the alert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alertmanager import STARTED, alert, group, posted

from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.incident import Incident
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks

Stall = Callable[..., Incident]


def crashed(stall: Stall, primary: Primary) -> Incident:
    return stall(
        id="myrun/ended/cuda-oom/1",
        kind="ended",
        status="resolved",
        resolution="run-failed",
        stalled_seconds=None,
        rule="cuda-oom",
        rank=None,
        primary=primary,
        ending=Ending("failed", 1, None, "The command returned 1.", 7500.0),
        evidence=[],
        opened_at=STARTED - 5,
    )


def test_message_contains_the_diagnosis_of_the_incident(
    start: Any, store: IncidentStore, stall: Stall, oom_primary: Primary, chat_server: Any
) -> None:
    store.upsert(crashed(stall, oom_primary))
    post = start(alerts={"dashboard_url": "https://dash.example/"})
    assert post(group(alert("StallwatchCudaOom", rule="cuda-oom"))) == 200
    assert posted(chat_server, 1) == [("ended", "cuda-oom", "resolved")]
    (body,) = chat_server.bodies
    assert body["title"] == "[myrun] failed: CUDA out of memory (rank 7)"
    for fact in ("torch.OutOfMemoryError", "1. Lower micro_batch_size.", "exit code 1"):
        assert fact in body["text"]
    rule, page = body["text"].splitlines()[-2:]
    assert rule == "Rule: https://dash.example/rules?rule=cuda-oom"
    assert page == "Dashboard: https://dash.example/run?run=myrun"


def test_first_message_contains_the_locations_of_the_ranks(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    groups = [
        StackGroup(ranks=[0, 2, 3], kind="collective", what="all_gather"),
        StackGroup(ranks=[1], kind="data", place="train.py:42 in step"),
    ]
    store.upsert(stall(stacks=StallStacks(5.0, 0.1, groups, [1], "elsewhere", file="stacks-1.txt")))
    start()(group(alert(incident="stall")))
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    title = "[myrun] stalled: no step for 42 s after step 160 of 900, rank 1 holds up the run"
    title += " at train.py:42 in step"
    assert body["title"] == title
    for fact in ("train.py:42 in step", "step 160 of 900"):
        assert fact in body["text"]
    assert body["odd_ranks"] == "1"


def test_incidents_of_a_group_are_one_message_with_the_worst_first(
    start: Any, store: IncidentStore, stall: Stall, oom_primary: Primary, chat_server: Any
) -> None:
    store.upsert(
        stall(id="myrun/finding/slow/1", kind="finding", rule="slow", severity="warning", harm="degrading")
    )
    store.upsert(crashed(stall, oom_primary))
    post = start()
    post(
        group(
            alert("StallwatchSlow", rule="slow", severity="warning"),
            alert("StallwatchRankGone", rank="7"),
            alert("StallwatchCudaOom", rule="cuda-oom"),
        )
    )
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    assert body["rule"] in ("cuda-oom", "StallwatchRankGone") and body["severity"] == "critical"
    assert body["title"].endswith("(and 2 more)")
    assert "degrading: slow" in body["text"]


def test_message_without_an_incident_uses_the_text_of_the_alert(start: Any, chat_server: Any) -> None:
    post = start()
    post(group(alert("StallwatchAgentGone")))
    post(group(alert("StallwatchAgentGone", firing=False)))
    assert posted(chat_server, 2) == [
        ("alert", "StallwatchAgentGone", "open"),
        ("alert", "StallwatchAgentGone", "resolved"),
    ]
    opened, over = chat_server.bodies
    assert "What the rule file says." in opened["text"]
    assert opened["text"].endswith("Rule: https://example.org/runbook")
    assert over["title"] == "[myrun] over: StallwatchAgentGone of myrun"


def test_runbook_without_a_url_is_shown_as_text(start: Any, chat_server: Any) -> None:
    gone = alert("StallwatchAgentGone")
    gone["annotations"] = {"summary": "gone", "runbook": "docs/alerts.md#stallwatchagentgone"}
    hostile = alert("StallwatchHostGone", run="other")
    hostile["annotations"] = {"summary": "gone", "runbook": "docs/x @all"}
    post = start()
    post(group(gone))
    chat_server.wait_for_requests(1)
    post(group(hostile))
    chat_server.wait_for_requests(2)
    first, second = chat_server.bodies
    assert first["text"].endswith("Rule: docs/alerts.md#stallwatchagentgone")
    assert "Rule:" not in second["text"]


def test_relay_message_can_be_chinese(start: Any, chat_server: Any) -> None:
    post = start(alerts={"language": "zh"})
    post(group(alert("StallwatchStragglerRank", rank="3")))
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    assert body["title"] == "[myrun] rank 3 落后于其他 rank"


def test_text_of_an_alert_mentions_no_user(start: Any, chat_server: Any) -> None:
    hostile = alert("StallwatchRankGone", run="<!channel> @all")
    hostile["annotations"] = {"summary": "<@U1> [x](http://evil)", "runbook_url": "javascript:alert(1)"}
    start()(group(hostile))
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    said = body["title"] + body["text"]
    assert not any(part in said for part in ("<", "@", "](", "http://evil", "javascript:"))


def test_minimum_severity_applies_to_the_relay(start: Any, chat_server: Any) -> None:
    post = start(alerts={"min_severity": "critical"})
    post(group(alert("StallwatchSlowdown", severity="warning")))
    post(group(alert("StallwatchTest", severity="info")))  # a test alert is always sent
    assert posted(chat_server, 1) == [("test", "test-message", "open")]
