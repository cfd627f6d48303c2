"""A wall clock that jumps by hours does not delay, hasten, repeat or drop a message."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch_alerts.delivery import sender
from stallwatch_alerts.delivery.outbox import Outbox
from stallwatch_alerts.delivery.pacing import Limit
from stallwatch_alerts.notice import Notice
from stallwatch_alerts.storage.engine import open_engine

Make = Callable[..., Notice]
Set = Callable[[float], None]
set_by = pytest.mark.parametrize("seconds", [7200.0, -7200.0])


@set_by
def test_requested_pause_is_independent_of_the_wall_clock(
    mail: Any, chat: Any, notice: Make, set_wall_clock: Set, seconds: float
) -> None:
    chat.script = [(429, {"Retry-After": "120"}, b"")]
    mail.put(notice(id="a/1"))
    mail.pass_time(2)
    set_wall_clock(seconds)
    mail.put(notice(id="a/2"))
    mail.pass_time(110)
    assert chat.requests == 1
    mail.pass_time(20)
    assert [body["id"] for body in chat.bodies] == ["a/1", "a/2"]


@set_by
def test_retry_delay_is_independent_of_the_wall_clock(
    mail: Any, chat: Any, notice: Make, set_wall_clock: Set, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "random", SimpleNamespace(random=lambda: 1.0))
    chat.always = 503
    mail.put(notice(id="a/1"))
    mail.pass_time(200)  # the wait has grown to a minute
    refused = chat.requests
    while chat.requests == refused:
        mail.pass_time(1)
    set_wall_clock(seconds)
    mail.pass_time(55)
    assert chat.requests == refused + 1
    mail.pass_time(10)
    assert chat.requests == refused + 2


@set_by
def test_rate_limits_are_independent_of_the_wall_clock(
    mail_of: Any, chat: Any, spool: Outbox, notice: Make, set_wall_clock: Set, seconds: float
) -> None:
    mail = mail_of(chat.url, spool, limits=(Limit(2, 60.0),))
    mail.put(*(notice(id=f"a/{number}") for number in range(3)))
    mail.pass_time(2)
    set_wall_clock(seconds)
    mail.pass_time(50)
    assert len(chat.bodies) == 2
    mail.pass_time(20)
    assert len(chat.bodies) == 3


@set_by
def test_claims_are_independent_of_the_wall_clock(
    mail: Any, chat: Any, notice: Make, set_wall_clock: Set, seconds: float
) -> None:
    mail.put(notice(id="a/1"))
    other = Outbox(open_engine(mail.outbox._engine.url.render_as_string()))
    assert other.claim(mail.channel, mail.clock.now) is not None
    mail.pass_time(2)
    set_wall_clock(seconds)
    mail.pass_time(50)
    assert chat.requests == 0
    mail.pass_time(20)  # the process hangs, and its claim has run out
    assert len(chat.bodies) == 1


@set_by
def test_message_does_not_look_late_after_a_clock_change(
    mail: Any, chat: Any, notice: Make, set_wall_clock: Set, seconds: float
) -> None:
    chat.script = [503]
    mail.put(notice(id="a/1"))
    mail.pass_time(1)
    set_wall_clock(seconds)
    mail.pass_time(5)
    (body,) = chat.bodies
    assert "late" not in body["text"]


@pytest.mark.parametrize("answer", [503, (429, {"Retry-After": "60"}, b"")])
@set_by
def test_delays_left_by_an_earlier_process_are_bounded(
    mail: Any, mail_of: Any, chat: Any, notice: Make, answer: Any, seconds: float
) -> None:
    chat.script = [answer]
    mail.put(notice(id="a/1"))
    mail.pass_time(1)
    assert chat.requests == 1
    mail.clock.now += seconds  # after a reboot, the clock starts at the time of the wall clock
    later = mail_of(chat.url, Outbox(mail.outbox._engine))
    later.pass_time(62)
    assert len(chat.bodies) == 1


def test_claim_left_by_an_earlier_process_expires(mail: Any, mail_of: Any, chat: Any, notice: Make) -> None:
    mail.put(notice(id="a/1"))
    assert mail.outbox.claim(mail.channel, mail.clock.now) is not None
    mail.clock.now -= 86400
    later = mail_of(chat.url, Outbox(mail.outbox._engine))
    later.pass_time(62)
    assert len(chat.bodies) == 1


def test_claim_of_a_dead_process_is_released(mail: Any, chat: Any, notice: Make) -> None:
    mail.put(notice(id="a/1"))
    other = Outbox(open_engine(mail.outbox._engine.url.render_as_string()))
    assert other.claim(mail.channel, mail.clock.now) is not None
    mail.clock.now += 7200.0
    mail.pass_time(2)
    assert len(chat.bodies) == 1
