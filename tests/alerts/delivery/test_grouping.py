from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stallwatch_alerts.delivery.grouping import TITLE_LIMIT, Group, group_of, grouped_message, merged
from stallwatch_alerts.messages.compose import Message
from stallwatch_alerts.messages.links import TEXT_LIMIT
from stallwatch_alerts.notice import Notice

Make = Callable[..., Notice]


def plain(number: int, severity: str = "critical", status: str = "open") -> Group:
    facts = {"id": f"run/{number}", "severity": severity, "status": status}
    return group_of(Notice(Message(f"title {number}", "text"), "failure", facts))


def test_single_message_is_unchanged(notice: Make) -> None:
    one = notice()
    assert grouped_message(group_of(one), "en") == one


def test_most_severe_message_is_complete_and_others_are_titles(notice: Make) -> None:
    groups = [
        group_of(notice(id="w", run="weak", severity="warning")),
        group_of(notice(id="c", run="strong")),
        group_of(notice(id="r", run="gone", status="resolved", resolution="recovered")),
    ]
    whole = grouped_message(merged(groups), "en")
    assert whole.message.title.startswith("[strong] stalled") and "2 more" in whole.message.title
    assert "Total: 1 critical, 1 warning, 1 ended." in whole.message.text
    assert "- [weak] stalled" in whole.message.text and "- [gone] recovered" in whole.message.text
    assert (whole.facts["id"], whole.facts["count"]) == ("c", 3)
    assert (whole.facts["incidents"], whole.facts["statuses"]) == ("w,c,r", "open,open,resolved")


def test_group_of_an_older_version_has_empty_statuses(notice: Make) -> None:
    older = structs.replace(merged([group_of(notice(id="a")), group_of(notice(id="b"))]), statuses=[])
    whole = grouped_message(merged([older, group_of(notice(id="c"))]), "en")
    assert (whole.facts["incidents"], whole.facts["statuses"]) == ("a,b,c", ",,open")


def test_ten_thousand_incidents_fit_into_one_message(notice: Make) -> None:
    group = merged([group_of(notice(run="r" * 80))] * 10_000)
    for language, words in (("en", "10000 critical"), ("zh", "严重 10000 条")):
        message = grouped_message(group, language, late=7200, expired=3).message
        assert words in message.text
        assert len(message.title) <= TITLE_LIMIT and len(message.text) <= TEXT_LIMIT


@pytest.mark.parametrize("language", ["en", "zh"])
def test_late_message_shows_its_time(notice: Make, language: str) -> None:
    now = 1_795_000_000.0
    then = datetime.fromtimestamp(now - 100).astimezone()
    one = group_of(notice())
    in_time = grouped_message(one, language, late=29.0, now=now)
    assert in_time.message.text == notice().message.text
    late = grouped_message(one, language, late=100.0, now=now).message.text
    assert f"{then:%Y-%m-%d %H:%M:%S %Z}" in late.splitlines()[0] and late.endswith(in_time.message.text)


@given(st.lists(st.tuples(st.sampled_from(["critical", "warning"]), st.sampled_from(["open", "resolved"]))))
def test_merging_groups_is_associative_and_loses_nothing(kinds: list[tuple[str, str]]) -> None:
    ones = [plain(number, *kind) for number, kind in enumerate(kinds)] or [plain(0)]
    at_once = merged(ones)
    bit_by_bit = ones[0]
    for item in ones[1:]:
        bit_by_bit = merged([bit_by_bit, item])
    assert at_once.count == bit_by_bit.count == len(ones)
    assert at_once.severities == bit_by_bit.severities
    assert sum(at_once.severities.values()) == len(ones)
    assert at_once.worst.facts["status"] == bit_by_bit.worst.facts["status"]
