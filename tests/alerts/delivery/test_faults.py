"""Every message arrives despite faults of chat, network or clock, and none arrives twice without a reason."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch_alerts.delivery import sender
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.pacing import GIVE_UP_AFTER
from stallwatch_alerts.notice import Notice

Make = Callable[..., Notice]
HOUR = 3600.0


def test_chat_that_was_down_for_an_hour_receives_each_message_once(
    mail: Any, chat: Any, notice: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Random pauses would make messages near the end of a pause look late.
    monkeypatch.setattr(sender, "random", SimpleNamespace(random=lambda: 0.5))
    chat.always = 503
    mail.put(notice(id="a/1"))
    mail.pass_time(HOUR, step=5)
    mail.put(notice(id="a/1", status="resolved", resolution="recovered"))
    refused = chat.requests
    assert 50 <= refused <= 100  # no more than one request a minute
    chat.always = None
    mail.pass_time(120)
    assert [body["status"] for body in chat.bodies] == ["open", "resolved"]
    assert "late" in chat.bodies[0]["text"] and "1 h" in chat.bodies[0]["text"]
    assert "late" not in chat.bodies[1]["text"]
    assert chat.requests == refused + 2
    assert mail.states() == ["sent", "sent"]
    assert len(mail.said) == 1 and "s3cr3t" not in mail.said[0]


@pytest.mark.parametrize(
    "answer",
    [
        (429, {"Retry-After": "120"}, b""),
        (503, {"Retry-After": "120"}, b""),
        (429, {}, b'{"ok": false, "parameters": {"retry_after": 120}}'),
        (429, {}, b'{"message": "You are being rate limited.", "retry_after": 120.5}'),
    ],
)
def test_retry_after_applies_to_all_messages_of_the_chat(
    mail: Any, chat: Any, notice: Make, answer: Any
) -> None:
    chat.script = [answer]
    mail.put(notice(id="a/1"))
    mail.pass_time(60)
    mail.put(notice(id="a/2"))
    mail.pass_time(59)
    assert chat.requests == 1
    mail.pass_time(10)
    assert [body["id"] for body in chat.bodies] == ["a/1", "a/2"]


@pytest.mark.parametrize(
    "trouble",
    [500, 502, 504, 403, "hang", b"", b"HTTP/1.1 banana\r\n\r\n", b"\x16\x03\x01garbage", b"HTTP/1.1 200"],
    ids=str,
)
def test_messages_survive_errors_timeouts_and_malformed_answers(
    mail_of: Any, spool: Outbox, chat: Any, notice: Make, trouble: Any
) -> None:
    mail = mail_of(chat.url.replace("rto=60", "rto=2") if trouble == "hang" else chat.url, spool)
    chat.script = [trouble, trouble]
    mail.put(notice(id="a/1"), notice(id="a/1", status="resolved", resolution="recovered"))
    mail.pass_time(30)
    assert [body["status"] for body in chat.bodies] == ["open", "resolved"]
    assert mail.states() == ["sent", "sent"]
    assert all("s3cr3t" not in delivery.reason for delivery in mail.outbox.deliveries())


def test_messages_survive_a_temporary_dns_failure(
    mail_of: Any, spool: Outbox, chat: Any, notice: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.invalid` never resolves (RFC 6761); the test simulates the name server that recovers."""
    import socket

    port = chat.url.split(":")[2].split("/")[0]
    mail = mail_of(f"json://chat.invalid:{port}/hook-s3cr3t?cto=2&rto=2", spool)
    mail.put(notice(id="a/1"))
    mail.pass_time(30)
    assert chat.requests == 0 and mail.states() == ["waiting"]
    real = socket.getaddrinfo

    def known(host: Any, *rest: Any, **named: Any) -> Any:
        return real("127.0.0.1" if host == "chat.invalid" else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    mail.pass_time(60)
    assert [body["id"] for body in chat.bodies] == ["a/1"]


def test_clock_that_jumps_ahead_drops_no_message(mail: Any, chat: Any, notice: Make, clock: Any) -> None:
    chat.always = 500
    mail.put(notice(id="a/1"))
    mail.pass_time(3)
    clock.now += 400 * 86400
    mail.pass_time(3)
    chat.always = None
    mail.pass_time(100)
    assert [body["id"] for body in chat.bodies] == ["a/1"]


def test_messages_dropped_after_a_day_are_mentioned_when_the_chat_is_back(
    mail: Any, chat: Any, notice: Make
) -> None:
    chat.always = 500
    mail.put(notice(id="a/1"), notice(id="a/2"))
    mail.pass_time(GIVE_UP_AFTER + 1200, step=600)
    assert mail.states() == ["given-up", "given-up"]
    assert sum("gave up" in line for line in mail.said) == 2
    chat.always = None
    mail.pass_time(120)
    (body,) = chat.bodies
    assert body["kind"] == "expired" and body["count"] == 2
    mail.put(notice(id="a/3"))
    mail.pass_time(5)
    assert len(chat.bodies) == 2 and "given up" not in chat.bodies[1]["text"]


def test_permanently_refused_message_delays_others_only_briefly(
    mail: Any, chat: Any, notice: Make, mail_of: Any, spool: Outbox
) -> None:
    class Picky:
        name = "picky"

        def __init__(self) -> None:
            self.taken: list[str] = []

        def send(self, one: Notice) -> None:
            if one.facts["id"] == "poison":
                raise ValueError("too long")
            self.taken.append(str(one.facts["id"]))

    picky = Picky()
    post = mail_of("json://picky/x", spool, connect=lambda _: picky)
    post.put(notice(id="poison"))
    post.pass_time(1)
    post.put(*(notice(id=f"a/{number}") for number in range(10)))
    post.pass_time(60)
    assert len(picky.taken) >= 1 and post.states()[1:] == ["sent"] * 10
    assert post.states()[0] == "waiting"
