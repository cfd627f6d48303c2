"""Delivery to a chat over real HTTP, and the handling of failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting import wait_until

from stallwatch_alerts.notice import Notice
from stallwatch_alerts.settings import AlertSettings
from stallwatch_alerts.sink import ChatSink
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import Catalogue

Stall = Callable[..., Incident]


def resolved(stall: Stall, **changes: Any) -> Incident:
    return stall(status="resolved", resolution="recovered", resolved_at=1100.0, **changes)


def test_open_and_resolved_messages_arrive_with_text_and_facts(
    chat_server: Any, stall: Stall, catalogue: Catalogue
) -> None:
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue)
    sink(stall())
    sink(stall(stalled_seconds=50.0))  # an update is not sent
    sink(resolved(stall))
    assert sink.close(120)
    opened, over = chat_server.bodies
    assert {
        key: opened[key] for key in ("run", "rule", "kind", "severity", "status", "step", "episode", "id")
    } == {
        "run": "myrun",
        "rule": "silent-hang-no-error",
        "kind": "stall",
        "severity": "critical",
        "status": "open",
        "step": 160,
        "episode": 1,
        "id": "myrun/stall/silent-hang-no-error/1",
    }
    assert opened["title"] == "[myrun] stalled: no step for 42 s after step 160 of 900"
    assert "threshold" not in opened and "node-1" in opened["text"]
    assert opened["text"].splitlines()[0] == opened["message"].splitlines()[0]
    assert over["status"] == "resolved" and over["title"].startswith("[myrun] recovered")
    assert (sink.sent, sink.failed) == (2, 0)


def test_strange_names_reach_a_webhook_unchanged(
    chat_server: Any, stall: Stall, catalogue: Catalogue
) -> None:
    run = 'sft "7b" & 50% + ?x=1/#2 训练'
    sink = ChatSink(AlertSettings(urls=(chat_server.url,), language="zh"), catalogue)
    sink(stall(run=run))
    assert sink.close(120)
    assert chat_server.bodies[0]["run"] == run
    assert "卡住" in chat_server.bodies[0]["title"]


def test_fields_in_the_url_have_precedence(chat_server: Any, stall: Stall, catalogue: Catalogue) -> None:
    sink = ChatSink(AlertSettings(urls=(chat_server.url + "&:team=infra&:run=other&:message=",)), catalogue)
    sink(stall())
    assert sink.close(120)
    (body,) = chat_server.bodies
    assert (body["team"], body["run"], "message" in body) == ("infra", "other", False)


def test_server_that_fails_twice_gets_the_message_once(
    chat_server: Any, stall: Stall, catalogue: Catalogue
) -> None:
    chat_server.answers = [500, 500]
    said: list[str] = []
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue, report=said.append)
    sink(stall())
    assert sink.close(120)
    assert (chat_server.requests, len(chat_server.bodies)) == (3, 1)
    assert (sink.sent, sink.failed) == (1, 0)
    assert len(said) == 1 and "500" in said[0] and "s3cr3t" not in said[0]


def test_undelivered_messages_in_memory_are_counted_as_lost(
    chat_server: Any, stall: Stall, catalogue: Catalogue
) -> None:
    chat_server.answers = [500] * 50
    said: list[str] = []
    sink = ChatSink(AlertSettings(urls=(chat_server.url,)), catalogue, report=said.append)
    sink(stall())
    chat_server.wait_for_requests(2)  # the message is tried again
    assert not sink.close(0.5)
    assert (sink.sent, sink.failed, sink.kept()) == (0, 1, 0)
    assert len(said) == 1 and "trying again" in said[0] and "s3cr3t" not in said[0]


def test_failing_report_does_not_lose_messages(chat_server: Any, stall: Stall, catalogue: Catalogue) -> None:
    def dead(_: str) -> None:
        raise OSError("stderr is gone")

    chat_server.answers = [500]
    sink = ChatSink(AlertSettings(urls=(chat_server.url, "nonsense://x")), catalogue, report=dead)
    sink(stall())
    wait_until(lambda: sink.sent)
    sink.close(0.5)
    assert len(chat_server.bodies) == 1
    assert (sink.sent, sink.failed) == (1, 1)  # the second URL is invalid


def test_queued_messages_at_the_end_are_counted(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue)
    channel.open.clear()
    for episode in range(3):
        sink(stall(id=f"myrun/stall/x/{episode}"))
    assert not sink.close(0)
    assert sink.failed == 3
    channel.open.set()


def test_unreachable_chat_does_not_delay_others(chat_server: Any, stall: Stall, catalogue: Catalogue) -> None:
    urls = ("json://127.0.0.1:1/x", chat_server.url)  # port 1 refuses connections
    sink = ChatSink(AlertSettings(urls=urls), catalogue)
    sink(stall())
    wait_until(lambda: sink.sent)
    started = time.monotonic()
    assert not sink.close(0.1)
    assert time.monotonic() - started < 120
    assert (sink.sent, sink.failed) == (1, 1)


def test_invalid_url_is_reported_and_the_others_work(
    chat_server: Any, stall: Stall, catalogue: Catalogue
) -> None:
    said: list[str] = []
    settings = AlertSettings(urls=("nonsense://s3cr3t/abcdefgh", chat_server.url))
    sink = ChatSink(settings, catalogue, report=said.append)
    sink(stall())
    wait_until(lambda: sink.sent)
    assert not sink.close(0.5)
    (problem,) = said
    assert problem.startswith("nonsense://**** cannot be used: ")
    assert "s3cr3t" not in problem and "abcdefgh" not in problem
    assert (len(chat_server.bodies), sink.sent, sink.failed) == (1, 1, 1)


class Recorder:
    """A channel in memory that tests can block."""

    name = "memory"

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.open = threading.Event()
        self.open.set()

    def send(self, notice: Notice) -> None:
        self.open.wait(120)
        self.notices.append(notice)


def in_memory(catalogue: Catalogue, **settings: Any) -> tuple[ChatSink, Recorder]:
    channel = Recorder()
    return ChatSink(AlertSettings(urls=("x",), **settings), catalogue, connect=lambda _: channel), channel


def statuses(channel: Recorder) -> list[tuple[str, object]]:
    return [(str(notice.facts["id"])[-1], notice.facts["status"]) for notice in channel.notices]


def test_second_episode_is_reported_again(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue)
    for episode in (1, 2):
        name = f"myrun/stall/x/{episode}"
        sink(stall(id=name, episode=episode))
        sink(resolved(stall, id=name, episode=episode))
        sink(resolved(stall, id=name, episode=episode))
        # four messages at once would be merged into one
        wait_until(lambda wanted=2 * episode: sink.sent == wanted)
    assert sink.close(120)
    assert statuses(channel) == [("1", "open"), ("1", "resolved"), ("2", "open"), ("2", "resolved")]


def test_adopted_incident_is_not_resent_and_its_end_is_sent(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue)
    sink.adopt(stall(id="a"))
    sink(stall(id="a", stalled_seconds=90.0))
    sink(resolved(stall, id="a"))
    assert sink.close(120)
    assert statuses(channel) == [("a", "resolved")]


def test_incident_counts_as_sent_when_no_message_waits(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue)
    channel.open.clear()  # the chat does not answer
    assert sink.has_sent("a")
    sink(stall(id="a"))
    assert not sink.has_sent("a")
    assert sink.has_sent("b")
    channel.open.set()
    wait_until(lambda: sink.has_sent("a"))
    assert statuses(channel) == [("a", "open")]
    assert sink.close(120)


def test_min_severity_filters_openings_and_their_resolves(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue, min_severity="critical")
    sink(stall(severity="warning", id="a"))
    sink(resolved(stall, severity="warning", id="a"))
    sink(stall(severity="warning", id="b"))
    sink(stall(severity="critical", id="b"))  # the incident became critical
    sink(resolved(stall, severity="info", id="b"))
    assert sink.close(120)
    assert statuses(channel) == [("b", "open"), ("b", "resolved")]


def test_queued_message_is_independent_of_later_changes(stall: Stall, catalogue: Catalogue) -> None:
    sink, channel = in_memory(catalogue)
    channel.open.clear()
    incident = stall()
    sink(incident)
    incident.status, incident.run = "resolved", "changed"
    channel.open.set()
    assert sink.close(120)
    assert channel.notices[0].facts["status"] == "open"
    assert "[myrun]" in channel.notices[0].message.title


def test_sink_never_raises(stall: Stall, catalogue: Catalogue) -> None:
    sink, _ = in_memory(catalogue)
    broken = stall()
    broken.run = None  # type: ignore[assignment]
    sink(broken)
    assert sink.failed == 1
    sink.close(1)


def test_logs_contain_no_url(
    chat_server: Any, stall: Stall, catalogue: Catalogue, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    chat_server.answers = [500, 404]
    urls = (chat_server.url, "slack://s3cr3t", "nonsense://s3cr3t")
    said: list[str] = []
    sink = ChatSink(AlertSettings(urls=urls), catalogue, report=said.append)
    sink(stall())
    wait_until(lambda: len(said) == 3)
    sink.close(0.5)
    out, err = capfd.readouterr()
    assert len(said) == 3
    for text in (caplog.text, out, err, *said):
        assert "s3cr3t" not in text
