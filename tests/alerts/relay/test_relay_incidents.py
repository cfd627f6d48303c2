"""Alerts map to incidents, so that each incident is sent once, and its end to the same chats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from alertmanager import STARTED, alert, group, posted

from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.stacks.records import StallStacks

Stall = Callable[..., Incident]


def test_alerts_of_one_incident_are_one_message(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    store.upsert(stall())
    post = start()
    both = group(
        alert("StallwatchStalled", incident="stall"),
        alert("StallwatchSilentHangNoError", rule="silent-hang-no-error"),
    )
    answers = [post.answer(both) for _ in range(3)]  # Alertmanager repeats a group while it fires
    assert [status for status, _ in answers] == [200, 200, 200]
    assert [text for _, text in answers] == ["stored: 1 new\n", *["stored: 1 repeated\n"] * 2]
    assert posted(chat_server, 1) == [("stall", "silent-hang-no-error", "open")]


def test_alerts_of_three_hosts_of_a_run_are_one_message(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    # Two hosts reported the incident separately before their reports were merged.
    store.upsert(stall(id="myrun/stall/silent-hang-no-error/7", opened_at=990.0))
    stacks = StallStacks(1000.0, 0.1, silent=["n3"])
    merged = {"hosts": ["n1", "n2"], "aliases": ["myrun/stall/silent-hang-no-error/7"], "stacks": stacks}
    store.upsert(stall(**merged))
    post = start()
    hosts = [alert(incident="stall", instance=f"n{number}:19400") for number in (1, 2)]
    answer = post.answer(group(*hosts, alert("StallwatchHostGone", host="n3")))
    assert answer == (200, "stored: 1 new\n")
    assert posted(chat_server, 1) == [("stall", "silent-hang-no-error", "open")]
    assert chat_server.bodies[0]["id"] == "myrun/stall/silent-hang-no-error/1"


def test_lost_host_is_no_separate_message_if_an_incident_is_about_it(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    store.upsert(
        stall(id="myrun/finding/host-gone/1", kind="finding", rule="host-gone", gone_hosts={"n3": 9.0})
    )
    answer = start().answer(group(alert("StallwatchHostGone", host="n3")))
    assert answer[0] == 200
    assert posted(chat_server, 1) == [("finding", "host-gone", "open")]


def test_lost_host_is_a_separate_message_unless_a_stall_mentions_it(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    store.upsert(stall(stacks=StallStacks(1000.0, 0.1, silent=["n9"])))
    start(alerts={"urls": (chat_server.url,), "language": "zh"})(
        group(alert("StallwatchHostGone", host="n3"))
    )
    assert posted(chat_server, 1) == [("alert", "StallwatchHostGone", "open")]
    assert chat_server.bodies[0]["title"].startswith("[myrun] 主机 n3 失联")


def test_end_of_an_incident_goes_only_to_notified_chats(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    store.upsert(stall())
    post = start()
    over = group(alert(incident="stall", firing=False))
    # the metrics are gone, but the stall is not over
    assert post.answer(over)[1] == "stored: nothing to send\n"
    post(group(alert(incident="stall")))
    store.upsert(stall(status="resolved", resolution="recovered", resolved_at=1090.0, updated_at=1090.0))
    post(over)
    assert posted(chat_server, 2) == [
        ("stall", "silent-hang-no-error", "open"),
        ("stall", "silent-hang-no-error", "resolved"),
    ]
    store.upsert(stall(id="myrun/stall/silent-hang-no-error/2", episode=2, opened_at=2000.0))
    store.upsert(
        stall(id="myrun/stall/silent-hang-no-error/2", episode=2, opened_at=2000.0, status="resolved")
    )
    answer = post.answer(over)[1]  # no chat received the opening
    assert answer == "stored: 1 not sent to any chat (min_severity or routes)\n"


def test_second_episode_is_reported_again(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    post = start()
    for episode in (1, 2):
        identity = f"myrun/stall/silent-hang-no-error/{episode}"
        store.upsert(stall(id=identity, episode=episode, opened_at=1000.0 * episode))
        post(group(alert(incident="stall")))
        chat_server.wait_for_requests(episode)
        store.upsert(stall(id=identity, episode=episode, opened_at=1000.0 * episode, status="resolved"))
    assert [body["episode"] for body in chat_server.bodies] == [1, 2]


@pytest.mark.parametrize(
    "earlier",
    [
        {"kind": "stall", "status": "resolved", "resolved_at": STARTED - 3600, "opened_at": STARTED - 4000},
        {"kind": "ended", "status": "resolved", "resolved_at": STARTED - 3600, "opened_at": STARTED - 3600},
    ],
    ids=["over", "of an earlier run of this name"],
)
def test_alert_is_not_matched_with_a_past_incident(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any, earlier: dict[str, Any]
) -> None:
    store.upsert(stall(id="myrun/x/y/1", **earlier))
    start()(group(alert("StallwatchRunFailed", incident=earlier["kind"])))
    assert posted(chat_server, 1) == [("alert", "StallwatchRunFailed", "open")]


def test_relay_does_not_repeat_messages_of_the_agent(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any, other_chat_server: Any
) -> None:
    store.upsert(stall())
    sink = StoreSink(lambda: IncidentStore(str(store.engine.url)))
    from stallwatch_alerts.notice import fingerprint, incident_notice

    sink.note_notified(fingerprint(chat_server.url), (incident_notice(stall(), "en", None).key,))
    assert sink.close(120)
    post = start(alerts={"urls": (chat_server.url, other_chat_server.url)})
    assert post.answer(group(alert(incident="stall")))[1] == "stored: 1 new\n"
    other_chat_server.wait_for_requests(1)
    assert chat_server.requests == 0


def test_later_run_of_the_same_name_is_another_run(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    post = start()
    for number, opened in enumerate((1000.0, 3_000_000.0), 1):
        store.upsert(stall(opened_at=opened))  # the new incident has the same id
        post(group(alert(incident="stall")))
        chat_server.wait_for_requests(number)
    assert [body["episode"] for body in chat_server.bodies] == [1, 1]


def test_new_alert_waits_for_its_incident(
    store: IncidentStore, stall: Stall, catalogue: Catalogue, chat_server: Any
) -> None:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.delivery.planning import Planner
    from stallwatch_alerts.relay.dispatching import Dispatcher, OutcomeCounts
    from stallwatch_alerts.relay.relay import NotificationIntake
    from stallwatch_alerts.relay.webhook import read_notification

    body = group(alert(incident="stall"))
    now = [read_notification(body).alerts[0].started + 1]

    def pause(seconds: float) -> None:
        now[0] += seconds
        if now[0] > read_notification(body).alerts[0].started + 3:
            store.upsert(stall())

    outbox = Outbox(store.engine)
    settings = AlertSettings(urls=(chat_server.url,))
    dispatcher = Dispatcher(settings, Planner(settings), catalogue)
    intake = NotificationIntake(store, outbox, dispatcher, lambda: now[0], pause)
    assert intake.receive(body).tally == OutcomeCounts(new=1)
    assert outbox.deliveries()[0].title.startswith("[myrun] stalled: ")
    # Without an incident, the alert itself is sent a few seconds later.
    began = now[0] = read_notification(body).alerts[0].started
    assert intake.receive(group(alert(incident="ended"))).tally.new == 1
    assert 5 <= now[0] - began < 6


def test_failure_closes_its_incident_for_any_of_its_alerts(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    """The alert of the final rule or of the first rule may still fire beside the alert of the run's end."""
    about: dict[str, Any] = {"id": "myrun/finding/rank-gone/1", "opened_at": STARTED, "updated_at": STARTED}
    post = start()
    store.upsert(stall(**about, kind="finding", rule="rank-gone"))
    first = alert("StallwatchRankGone", rule="rank-gone")
    assert post.answer(group(first))[1] == "stored: 1 new\n"
    about |= {"updated_at": STARTED + 600, "resolved_at": STARTED + 600}
    store.upsert(stall(**about, kind="ended", rule="cuda-oom", status="resolved", resolution="run-failed"))
    all_three = group(
        first, alert("StallwatchCudaOom", rule="cuda-oom"), alert("StallwatchRunFailed", incident="ended")
    )
    assert [post.answer(all_three)[1] for _ in range(2)] == ["stored: 1 new\n", "stored: 1 repeated\n"]
    assert post.answer(group(alert("StallwatchRankGone", rule="rank-gone", firing=False)))[0] == 200
    assert posted(chat_server, 2) == [("finding", "rank-gone", "open"), ("ended", "cuda-oom", "resolved")]
    assert chat_server.requests == 2
