"""The relay over real HTTP, with a real database and a real chat: joined, kept, told once."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch_alerts.delivery.fingerprint import fingerprint
from stallwatch_alerts.delivery.ledger import Ledger
from stallwatch_alerts.relay.relay import Relay
from stallwatch_alerts.relay.settings import RelaySettings
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.store import IncidentStore
from stallwatch_alerts.store_sink import StoreSink
from stallwatch_exporter.incident import Ending, Incident
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Primary
from stallwatch_rules.stacks.records import StackGroup, StallStacks

Stall = Callable[..., Incident]
STARTED = 1795245133.0  # when the alerts below began


def alert(name: str = "StallwatchStalled", *, firing: bool = True, **labels: str) -> dict[str, Any]:
    """As Alertmanager writes one."""
    given = {"alertname": name, "run": "myrun", "severity": "critical", **labels}
    return {
        "status": "firing" if firing else "resolved",
        "labels": given,
        "annotations": {
            "summary": f"{name} of myrun",
            "description": "What the rule file says.",
            "runbook_url": "https://example.org/runbook",
        },
        "startsAt": "2026-11-21T07:12:13.123456789Z",
        "endsAt": "0001-01-01T00:00:00Z" if firing else "2026-11-21T07:13:13.1Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=x",
        "fingerprint": f"{hash(tuple(sorted(given.items()))) & 0xFFFFFFFFFFFFFFFF:016x}",
    }


def group(*alerts: dict[str, Any], **changes: Any) -> bytes:
    """The body of a webhook's request."""
    body = {
        "receiver": "stallwatch-relay",
        "status": "firing" if any(one["status"] == "firing" for one in alerts) else "resolved",
        "alerts": list(alerts),
        "groupLabels": {"run": "myrun"},
        "commonLabels": {"run": "myrun"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "version": "4",
        "groupKey": '{}:{run="myrun"}',
        "truncatedAlerts": 0,
        **changes,
    }
    return json.dumps(body).encode()


class Post:
    """Posts to a relay."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.relay.server.port}"

    def __call__(
        self, body: bytes | None, path: str = "/alertmanager", headers: dict[str, str] | None = None
    ) -> int:
        return self.answer(body, path, headers)[0]

    def answer(
        self, body: bytes | None, path: str = "/alertmanager", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        request = urllib.request.Request(self.base + path, data=body, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[IncidentStore]:
    made = IncidentStore.at_home(tmp_path)
    yield made
    made.close()


@pytest.fixture
def start(store: IncidentStore, catalogue: Catalogue, chat_server: Any) -> Iterator[Callable[..., Post]]:
    """Starts relays; the chat is the local one unless told otherwise."""
    running: list[Relay] = []

    def make(*, on: IncidentStore = store, **settings: Any) -> Post:
        alerts = {"urls": (chat_server.url,), **settings.pop("alerts", {})}
        given = RelaySettings(port=0, alerts=AlertSettings(**alerts), **settings)
        running.append(Relay(given, on, catalogue))
        return Post(running[-1])

    yield make
    for relay in running:
        relay.close()


def told(chat_server: Any, count: int) -> list[tuple[str, str, str]]:
    """Run, id and status of the messages, once so many requests came."""
    chat_server.wait_for_requests(count)
    return [(body["kind"], body["rule"], body["status"]) for body in chat_server.bodies]


def crashed(stall: Stall, primary: Primary) -> Incident:
    return stall(
        id="myrun/ended/cuda-oom/1",
        kind="ended",
        rule="cuda-oom",
        rank=None,
        primary=primary,
        ending=Ending("failed", 1, None, "The command returned 1.", 7500.0),
        evidence=[],
        opened_at=STARTED - 5,
    )


def test_an_alert_is_told_with_the_diagnosis_of_its_incident(
    start: Any, store: IncidentStore, stall: Stall, oom_primary: Primary, chat_server: Any
) -> None:
    store.upsert(crashed(stall, oom_primary))
    post = start(dashboard_url="https://dash.example/")
    assert post(group(alert("StallwatchCudaOom", rule="cuda-oom"))) == 200
    assert told(chat_server, 1) == [("ended", "cuda-oom", "open")]
    (body,) = chat_server.bodies
    assert body["title"] == "[myrun] failed: CUDA out of memory (rank 7)"
    for fact in ("torch.OutOfMemoryError", "1. Lower micro_batch_size.", "exit code 1"):
        assert fact in body["text"]
    rule, page = body["text"].splitlines()[-2:]
    assert rule.startswith("Rule: https://github.com/")
    assert page == "Page: https://dash.example/run?run=myrun"


def test_where_the_ranks_stand_is_in_the_first_message(
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
    assert body["title"] == "[myrun] stalled: no step for 42 s after step 160 of 900"
    for fact in ("rank 1 holds up the run", "train.py:42 in step", "stacks-1.txt", "'loss': 0.63214"):
        assert fact in body["text"]
    assert body["odd_ranks"] == "1"


def test_all_alerts_of_one_incident_are_one_message_and_repeats_are_none(
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
    assert told(chat_server, 1) == [("stall", "silent-hang-no-error", "open")]


def test_the_end_is_told_when_the_incident_ended_and_only_to_who_heard_of_it(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    store.upsert(stall())
    post = start()
    over = group(alert(incident="stall", firing=False))
    assert post.answer(over)[1] == "stored: nothing to tell\n"  # the metrics went, the stall did not
    post(group(alert(incident="stall")))
    store.upsert(stall(status="resolved", resolution="recovered", resolved_at=1090.0, updated_at=1090.0))
    post(over)
    assert told(chat_server, 2) == [
        ("stall", "silent-hang-no-error", "open"),
        ("stall", "silent-hang-no-error", "resolved"),
    ]
    store.upsert(stall(id="myrun/stall/silent-hang-no-error/2", episode=2, opened_at=2000.0))
    store.upsert(
        stall(id="myrun/stall/silent-hang-no-error/2", episode=2, opened_at=2000.0, status="resolved")
    )
    answer = post.answer(over)[1]
    assert answer == "stored: 1 not to be told (min_severity and routes)\n"  # nobody was told that it began


def test_a_second_episode_is_told_again(
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
        {"kind": "ended", "opened_at": STARTED - 3600},  # of an earlier run of this name
    ],
    ids=["over", "of another run"],
)
def test_an_alert_is_not_taken_for_one_side_of_an_incident_of_the_past(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any, earlier: dict[str, Any]
) -> None:
    store.upsert(stall(id="myrun/x/y/1", **earlier))
    start()(group(alert("StallwatchRunFailed", incident=earlier["kind"])))
    assert told(chat_server, 1) == [("alert", "StallwatchRunFailed", "open")]


def test_several_incidents_of_a_group_are_one_message_the_worst_first(
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


def test_an_alert_without_an_incident_is_told_by_its_own_words(start: Any, chat_server: Any) -> None:
    post = start()
    post(group(alert("StallwatchAgentGone")))
    post(group(alert("StallwatchAgentGone", firing=False)))
    assert told(chat_server, 2) == [
        ("alert", "StallwatchAgentGone", "open"),
        ("alert", "StallwatchAgentGone", "resolved"),
    ]
    opened, over = chat_server.bodies
    assert "What the rule file says." in opened["text"]
    assert opened["text"].endswith("Rule: https://example.org/runbook")
    assert over["title"] == "[myrun] over: StallwatchAgentGone of myrun"


def test_in_chinese_too(start: Any, chat_server: Any) -> None:
    post = start(alerts={"language": "zh"})
    post(group(alert("StallwatchRankGone", rank="3")))
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    assert body["title"] == "[myrun] rank 3 的进程已不在，其他 rank 会一直等它"


def test_what_an_alert_says_mentions_nobody(start: Any, chat_server: Any) -> None:
    hostile = alert("StallwatchRankGone", run="<!channel> @all")
    hostile["annotations"] = {"summary": "<@U1> [x](http://evil)", "runbook_url": "javascript:alert(1)"}
    start()(group(hostile))
    chat_server.wait_for_requests(1)
    (body,) = chat_server.bodies
    said = body["title"] + body["text"]
    assert not any(part in said for part in ("<", "@", "](", "http://evil", "javascript:"))


def test_what_the_agent_told_a_chat_itself_the_relay_does_not_tell_it(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any, other_chat_server: Any
) -> None:
    store.upsert(stall())
    sink = StoreSink(lambda: IncidentStore(str(store.engine.url)))
    from stallwatch_alerts.channels.notice import incident_notice

    sink.told(chat_server.url, (incident_notice(stall(), "en", None).key,))
    assert sink.close(20)
    post = start(alerts={"urls": (chat_server.url, other_chat_server.url)})
    assert post.answer(group(alert(incident="stall")))[1] == "stored: 1 new\n"
    other_chat_server.wait_for_requests(1)
    assert chat_server.requests == 0


def test_a_run_of_the_same_name_after_the_first_was_pruned_is_another_one(
    start: Any, store: IncidentStore, stall: Stall, chat_server: Any
) -> None:
    post = start()
    for number, opened in enumerate((1000.0, 3_000_000.0), 1):
        store.upsert(stall(opened_at=opened))  # the same id
        post(group(alert(incident="stall")))
        chat_server.wait_for_requests(number)
    assert [body["episode"] for body in chat_server.bodies] == [1, 1]


def test_min_severity_holds_here_too(start: Any, chat_server: Any) -> None:
    post = start(alerts={"min_severity": "critical"})
    post(group(alert("StallwatchSlowdown", severity="warning")))
    post(group(alert("StallwatchTest", severity="info")))  # whoever tests wants to see it
    assert told(chat_server, 1) == [("test", "test-message", "open")]


def test_a_young_alert_waits_for_its_incident(
    store: IncidentStore, stall: Stall, catalogue: Catalogue, chat_server: Any
) -> None:
    from stallwatch_alerts.delivery.outbox import Outbox
    from stallwatch_alerts.delivery.planning import Planner
    from stallwatch_alerts.relay.composing import Composer
    from stallwatch_alerts.relay.dispatching import Dispatcher, Tally
    from stallwatch_alerts.relay.relaying import Relaying
    from stallwatch_alerts.relay.webhook import read_notification

    body = group(alert(incident="stall"))
    now = [read_notification(body).alerts[0].started + 1]

    def pause(seconds: float) -> None:
        now[0] += seconds
        if now[0] > read_notification(body).alerts[0].started + 3:
            store.upsert(stall())

    outbox = Outbox(store.engine)
    settings = AlertSettings(urls=(chat_server.url,))
    dispatcher = Dispatcher(settings, Planner(settings), Composer(catalogue, "en"), catalogue)
    relaying = Relaying(store, outbox, dispatcher, lambda: now[0], pause)
    assert relaying.receive(body).tally == Tally(new=1)
    assert outbox.deliveries()[0].title.startswith("[myrun] stalled: ")
    # Where none comes it is told all the same, a few seconds later.
    began = now[0] = read_notification(body).alerts[0].started
    assert relaying.receive(group(alert(incident="ended"))).tally.new == 1
    assert 5 <= now[0] - began < 6


def test_a_message_is_on_disk_before_alertmanager_hears_yes(
    start: Any, store: IncidentStore, chat_server: Any, tmp_path: Path, catalogue: Catalogue
) -> None:
    chat_server.answers = [503] * 1000
    post = start()
    assert post(group(alert("StallwatchRankGone"))) == 200
    chat_server.wait_for_requests(1)
    post.relay.close()
    chat_server.answers = []
    # Another process, the same database: nothing is lost, and nothing told that was told.
    again = start(on=IncidentStore.at_home(tmp_path))
    chat_server.wait_for_requests(chat_server.requests + 1)
    assert [body["rule"] for body in chat_server.bodies] == ["StallwatchRankGone"]
    assert again.answer(group(alert("StallwatchRankGone")))[1] == "stored: 1 repeated\n"


def test_a_database_that_does_not_take_it_makes_alertmanager_come_again(
    start: Any, store: IncidentStore, chat_server: Any
) -> None:
    post = start()
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE messages RENAME TO gone")
    assert post(group(alert("StallwatchRankGone"))) == 503
    assert post(None, "/-/healthy") == 503
    with store.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE gone RENAME TO messages")
    assert post(None, "/-/healthy") == 200
    assert post(group(alert("StallwatchRankGone"))) == 200
    assert told(chat_server, 1) == [("alert", "StallwatchRankGone", "open")]


def test_two_relays_on_one_database_tell_once(
    start: Any, store: IncidentStore, stall: Stall, tmp_path: Path, chat_server: Any
) -> None:
    store.upsert(stall())
    posts = [start(), start(on=IncidentStore.at_home(tmp_path))]
    body = group(alert(incident="stall"))
    gate = threading.Barrier(8)
    statuses: list[int] = []

    def send(number: int) -> None:
        gate.wait()
        statuses.append(posts[number % 2](body))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One that found the database busy is tried again by Alertmanager.
    assert set(statuses) <= {200, 503} and 200 in statuses
    while 503 in statuses:
        statuses[statuses.index(503)] = posts[0](body)
    chat_server.wait_for_requests(1)
    for post in posts:
        post.relay.close()
    assert len(chat_server.bodies) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"\xff\xfe", 400),
        (b"{}", 400),
        (group(version="3"), 400),
        (group(), 200),  # a group of none
        (group(newKey="of a later version"), 200),
    ],
)
def test_what_is_no_notification_is_refused_for_good(start: Any, body: bytes, status: int) -> None:
    assert start()(body) == status


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"startsAt": "yesterday"}, "startsAt 'yesterday' is no time"),
        ({"startsAt": "2026-11-21T07:12:13"}, "is no time"),  # of which zone?
        ({"status": "maybe"}, "status 'maybe' is neither firing nor resolved"),
        ({"labels": {"run": 7}}, "Expected `str`, got `int`"),
    ],
)
def test_one_alert_that_is_not_understood_does_not_take_the_others_with_it(
    start: Any, chat_server: Any, changes: dict[str, Any], wrong: str
) -> None:
    post = start()
    both = group(alert("StallwatchRankGone") | changes, alert("StallwatchAgentGone"))
    status, text = post.answer(both)
    assert status == 400
    assert "alerts[0]: " in text and wrong in text and "the others are stored: 1 new" in text
    assert told(chat_server, 1) == [("alert", "StallwatchAgentGone", "open")]
    assert 'outcome="refused"} 1.0' in post.answer(None, "/metrics")[1]


def test_a_severity_that_we_do_not_know_is_a_warning_and_said_once(
    store: IncidentStore, catalogue: Catalogue, chat_server: Any
) -> None:
    said: list[str] = []
    settings = RelaySettings(port=0, alerts=AlertSettings(urls=(chat_server.url,)))
    relay = Relay(settings, store, catalogue, report=said.append)
    try:
        post = Post(relay)
        paged, bare = alert("StallwatchPaged", severity="page"), alert("StallwatchBare")
        del bare["labels"]["severity"]
        for what in ("2 new", "2 repeated"):
            status, text = post.answer(group(paged, bare))
            assert (status, text.splitlines()[0]) == (200, f"stored: {what}")
            assert "StallwatchPaged: severity 'page' is unknown; taken for warning" in text
            assert "StallwatchBare: has no severity; taken for warning" in text
        chat_server.wait_for_requests(1)
        assert chat_server.bodies[0]["severity"] == "warning"
        assert [line.split(":")[0] for line in said] == ["StallwatchPaged", "StallwatchBare"]
    finally:
        relay.close()


def test_a_token_is_asked_for(start: Any, chat_server: Any) -> None:
    post = start(token="s3cr3t")
    body = group(alert("StallwatchRankGone"))
    assert post(body) == 401
    assert post(body, headers={"Authorization": "Bearer wrong"}) == 401
    assert post(None, "/api/messages") == 401
    assert post(None, "/-/healthy") == 200
    assert post(body, headers={"Authorization": "Bearer s3cr3t"}) == 200
    assert told(chat_server, 1) == [("alert", "StallwatchRankGone", "open")]


def test_other_requests_are_told_where_to_go(start: Any) -> None:
    post = start()
    assert post(group(), "/webhook") == 404
    assert post(None, "/") == 404
    status, text = post.answer(b"x" * 10, headers={"Content-Length": str(1 << 30)})
    assert status == 413 and "max_alerts" in text


def test_the_log_of_deliveries_and_the_numbers_hold_no_secret(start: Any, chat_server: Any) -> None:
    chat_server.answers = [500]
    post = start()
    post(group(alert("StallwatchRankGone")))
    post(group(alert("StallwatchWatchdog")))
    chat_server.wait_for_requests(2)
    post.relay.close()
    (message,) = [vars_of(one) for one in post.relay._messages("myrun")]
    assert (message["state"], message["attempts"]) == ("sent", 2)
    assert message["name"].endswith("/****") and "s3cr3t" not in json.dumps(message)


def vars_of(delivery: Any) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(delivery)


def test_the_numbers(start: Any, chat_server: Any) -> None:
    post = start()
    post(group(alert("StallwatchRankGone"), alert("StallwatchWatchdog")))
    post(b"nonsense")
    chat_server.wait_for_requests(1)
    status, text = post.answer(None, "/metrics")
    assert status == 200
    assert 'stallwatch_relay_notifications_total{outcome="stored"} 1.0' in text
    assert 'stallwatch_relay_notifications_total{outcome="refused"} 1.0' in text
    assert "stallwatch_relay_watchdog_timestamp_seconds 1." in text


def test_it_is_blind_until_it_hears_the_watchdog_and_when_that_falls_silent(start: Any) -> None:
    post = start(watchdog_seconds=300)
    relay = post.relay
    assert "does not fire here" in relay.blind()
    post(group(alert("StallwatchWatchdog")))
    assert relay.blind() == ""
    post(group(alert("StallwatchWatchdog", firing=False)))  # Alertmanager has not heard of it for a while
    assert "does not fire here" in relay.blind()
    post(group(alert("StallwatchWatchdog")))
    relay._relaying.watchdog_at -= 301
    assert "300 s" in relay.blind()
    # One Prometheus of two fell silent, or was replaced: the other one is heard.
    heard, silent = (alert("StallwatchWatchdog", firing=firing) for firing in (True, False))
    for alerts in ((heard, silent), (silent, heard)):
        post(group(*alerts))
        assert relay.blind() == ""


def test_what_is_old_is_forgotten_while_alertmanager_has_its_answer_already(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Event(), threading.Event()

    def prune(*_: Any) -> int:
        begun.set()
        over.wait(60)
        return 0

    post = start()
    monkeypatch.setattr(post.relay._outbox, "prune", prune)
    try:
        assert post(group(alert("StallwatchRankGone"))) == 200
        assert begun.wait(60) and len(post.relay._outbox.deliveries()) == 1
        begun.clear()
        assert post(group(alert("StallwatchRankGone"))) == 200 and not begun.is_set()  # once a day
    finally:
        over.set()


def test_who_was_told_is_kept_by_a_name_that_is_no_secret(store: IncidentStore) -> None:
    ledger = Ledger(store.engine)
    url = "slack://TokenA/TokenB"
    assert fingerprint(url) == fingerprint(f" {url} ") != fingerprint("slack://TokenA/TokenC")
    ledger.note(fingerprint(url), "a/open", 1.0)
    ledger.note(fingerprint(url), "a/open", 2.0)
    keys = ["a/open", "b/open", *(str(number) for number in range(2000))]
    assert ledger.told(fingerprint(url), keys) == {"a/open"}
    assert ledger.told("another", keys) == set()
