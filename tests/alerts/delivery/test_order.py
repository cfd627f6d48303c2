"""After an outage, a chat gets the oldest messages first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stallwatch_alerts.delivery.claims import IN_ORDER, Row, chosen
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.notice import Notice

URL = "json://127.0.0.1:1/hook"


class Down(Exception):
    """Error of a chat that does not answer, or that demands a pause."""

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("down")
        self.retry_after = retry_after


class Chat:
    """Chat that records the facts of each message, unless it is down or rejects the message."""

    name = "chat"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.dislikes = ""
        self.taken: list[str] = []
        self.tries = 0

    def send(self, notice: Notice) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        names = str(notice.facts.get("incidents") or notice.facts["id"])
        if self.dislikes and self.dislikes in names:
            raise ValueError("no such message")
        self.taken.append(f"{names} {notice.facts['status']}")


@pytest.fixture
def chat() -> Chat:  # type: ignore[override]  # a fake, in the place of a server
    return Chat()


@pytest.fixture
def mail(mail_of: Callable[..., Any], spool: Outbox, chat: Chat) -> Any:
    return mail_of(URL, spool, connect=lambda _: chat, limits=())


@pytest.mark.parametrize("up_after", range(1, 70, 9))
def test_new_incident_does_not_overtake_waiting_messages(
    mail: Any, chat: Chat, notice: Callable[..., Notice], up_after: int
) -> None:
    """The order holds whatever the older messages wait for."""
    chat.error = Down()
    mail.put(notice(id="a"))
    mail.pass_time(100)
    mail.put(notice(id="b"))
    mail.pass_time(100)
    mail.put(notice(id="a", status="resolved", resolution="recovered", resolved_at=1100.0))
    mail.pass_time(100 + up_after)
    chat.error = None
    mail.put(notice(id="c"))
    mail.pass_time(130)
    assert chat.taken == ["a open", "b open", "a resolved", "c open"]
    assert mail.states() == ["sent"] * 4


def test_order_is_kept_after_a_requested_pause(mail: Any, chat: Chat, notice: Callable[..., Notice]) -> None:
    chat.error = Down(retry_after=30.0)
    for number in range(3):
        mail.put(notice(id=f"incident-{number}"))
        mail.pass_time(200)
    chat.error = None
    mail.put(notice(id="incident-3"))
    mail.pass_time(200)
    assert chat.taken == [f"incident-{number} open" for number in range(4)]


def test_burst_is_grouped_after_messages_that_were_tried_before(
    mail: Any, chat: Chat, notice: Callable[..., Notice]
) -> None:
    chat.error = Down()
    mail.put(notice(id="old"))
    mail.pass_time(300)
    mail.put(*(notice(id=f"new-{number}") for number in range(20)))
    chat.error = None
    mail.pass_time(130)
    assert chat.taken[0] == "old open"
    assert len(chat.taken) == 2 and all(f"new-{number}" in chat.taken[1] for number in range(20))


def test_refused_message_delays_others_for_at_most_a_minute(
    mail: Any, chat: Chat, notice: Callable[..., Notice]
) -> None:
    chat.dislikes = "bad"
    mail.put(notice(id="bad"))
    mail.pass_time(300)
    mail.put(notice(id="good-1"))
    mail.pass_time(61)
    assert chat.taken == ["good-1 open"]
    mail.put(notice(id="good-2"), notice(id="bad", status="resolved"))  # the chat is known to work
    mail.pass_time(1)
    assert chat.taken == ["good-1 open", "good-2 open"]


def test_choice_of_the_next_message_after_refusals() -> None:
    old = Row(IN_ORDER, False, False, "old", created_at=0.0, tried_at=50.0)
    new = Row(0, True, False, "new", created_at=60.0)
    assert chosen([old, new], 70.0) == slice(0)  # the old message is due first
    # the old message was tried and refused
    assert chosen([replace(old, tried_at=69.0), new], 70.0) == slice(1, 2)
    # the old message was tried a while ago
    assert chosen([replace(old, tried_at=60.0), new], 70.0) == slice(0)
    assert chosen([replace(old, is_disliked=True), new], 70.0) == slice(1, 2)
