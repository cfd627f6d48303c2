"""The outbox on both databases: one claim at a time, in order, within limits, in bounded space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from stallwatch_alerts.delivery.grouping import MOST_WAITING
from stallwatch_alerts.delivery.outbox import CLAIM_SECONDS, Outbox
from stallwatch_alerts.delivery.pacing import Limit
from stallwatch_alerts.delivery.planning import Draft
from stallwatch_alerts.notice import Notice
from stallwatch_alerts.storage.engine import open_engine

Make = Callable[..., Notice]
NOW = 1_800_000_000.0
CHAT = "0123456789abcdef"


def draft(notice: Notice, **changes: Any) -> Draft:
    given = {"keys": (notice.key,), "about": str(notice.facts["id"]), **changes}
    return Draft(CHAT, "slack://****", "myrun", notice, **given)


def put(outbox: Outbox, *drafts: Draft, now: float = NOW) -> None:
    outbox.put(lambda *_: drafts, now)


def test_message_is_claimed_by_only_one_process(database: str, notice: Make) -> None:
    outboxes = [Outbox(open_engine(database)) for _ in range(4)]
    for number in range(20):
        put(outboxes[0], draft(notice(id=f"a/{number}")))
    sent: Counter[str] = Counter()

    def empty(outbox: Outbox) -> None:
        while outbox.waiting():
            batch = outbox.claim(CHAT, NOW)
            if batch is not None:
                sent.update(str(group.worst.facts["id"]) for group in batch.groups)
                outbox.sent(batch, CHAT, NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(empty, outboxes))
    assert sent == Counter({f"a/{number}": 1 for number in range(20)})


def test_expired_claim_no_longer_affects_the_message(outbox: Outbox, notice: Make) -> None:
    put(outbox, draft(notice(id="a")))
    lost = outbox.claim(CHAT, NOW)
    assert lost is not None
    assert outbox.claim(CHAT, NOW + CLAIM_SECONDS - 1) is None
    taken = outbox.claim(CHAT, NOW + CLAIM_SECONDS)
    assert taken is not None and taken.ids == lost.ids
    outbox.refused(lost, CHAT, "late", NOW + 70, NOW + 999)
    outbox.sent(taken, CHAT, NOW + 71)
    (delivery,) = outbox.deliveries()
    assert (delivery.state, delivery.reason, delivery.attempts) == ("sent", "", 1)


def test_few_messages_are_sent_singly_and_many_as_a_group(outbox: Outbox, notice: Make) -> None:
    put(outbox, *(draft(notice(id=f"a/{number}")) for number in range(3)))
    batch = outbox.claim(CHAT, NOW)
    assert batch is not None and len(batch.ids) == 1
    outbox.sent(batch, CHAT, NOW)
    put(outbox, *(draft(notice(id=f"b/{number}")) for number in range(2)))
    batch = outbox.claim(CHAT, NOW)
    assert batch is not None and len(batch.ids) == 4


def test_rate_limits_apply_to_all_senders_together(database: str, notice: Make) -> None:
    one, other = (Outbox(open_engine(database)) for _ in range(2))
    limits = (Limit(2, 60.0),)
    for number in range(3):
        put(one, draft(notice(id=f"a/{number}")))
    for outbox in (one, other):
        batch = outbox.claim(CHAT, NOW, limits)
        assert batch is not None
        outbox.sent(batch, CHAT, NOW)
    assert one.claim(CHAT, NOW + 59, limits) is None
    assert other.claim(CHAT, NOW + 61, limits) is not None


def test_delayed_message_does_not_delay_others(outbox: Outbox, notice: Make) -> None:
    put(outbox, draft(notice(id="later"), not_before=NOW + 100), draft(notice(id="now")))
    batch = outbox.claim(CHAT, NOW)
    assert batch is not None and batch.groups[0].worst.facts["id"] == "now"
    outbox.sent(batch, CHAT, NOW)
    assert outbox.claim(CHAT, NOW + 99) is None
    batch = outbox.claim(CHAT, NOW + 100)
    assert batch is not None and batch.groups[0].worst.facts["id"] == "later"


def test_messages_are_stored_all_or_none(outbox: Outbox, notice: Make) -> None:
    put(outbox, draft(notice(id="a")))
    with pytest.raises(Exception, match=r"UNIQUE|unique"):
        put(outbox, draft(notice(id="b")), draft(notice(id="a")))
    assert outbox.waiting() == 1


def test_thousands_of_waiting_messages_take_bounded_space(outbox: Outbox, notice: Make) -> None:
    count = 3 * MOST_WAITING
    for begin in range(0, count, 500):
        put(outbox, *(draft(notice(id=f"a/{number}")) for number in range(begin, begin + 500)))
    assert outbox.waiting() <= MOST_WAITING
    found = 0
    while batch := outbox.claim(CHAT, NOW):
        found += sum(group.count for group in batch.groups)
        outbox.sent(batch, CHAT, NOW)
    assert found == count


def test_old_messages_are_deleted_except_scheduled_ones(outbox: Outbox, notice: Make) -> None:
    put(outbox, draft(notice(id="sent")))
    batch = outbox.claim(CHAT, NOW)
    assert batch is not None
    outbox.sent(batch, CHAT, NOW)
    put(outbox, replace(draft(notice(id="waits")), not_before=NOW + 10))
    assert outbox.prune(NOW + 86401, 1) == 1  # the record of notified openings is kept for longer
    assert [delivery.state for delivery in outbox.deliveries()] == ["waiting"]
