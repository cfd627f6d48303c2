"""The sentences of a diagnosis in two languages."""

from __future__ import annotations

import pytest

from stallwatch_rules.text.plural import counted
from stallwatch_rules.text.sentences import retold, say, say_counted


@pytest.mark.parametrize(
    ("key", "values"),
    [("silent", {"silence": "2.2 s", "threshold": "2.0 s"}), ("silent-by-watch", {}), ("ended-well", {})],
)
def test_a_sentence_is_retold_in_the_other_language(key: str, values: dict[str, str]) -> None:
    english, chinese = say(key, "en", **values), say(key, "zh", **values)
    assert english != chinese
    assert retold(english, "zh") == chinese
    assert retold(chinese, "en") == english
    assert (retold(english, "en"), retold(chinese, "zh")) == (english, chinese)


def test_other_text_stays_as_it_is() -> None:
    for text in ("", "No step for you.", "RuntimeError: {silence}"):
        assert retold(text, "zh") == text


@pytest.mark.parametrize("key", ["overflow-start", "overflow-rare"])
def test_one_is_told_as_one_in_both_languages(key: str) -> None:
    assert say_counted(key, 1).startswith("One overflow")
    assert say_counted(key, 2).startswith("2 overflows")
    for count in (1, 2):
        assert retold(say_counted(key, count, "zh")) == say_counted(key, count)
        assert retold(say_counted(key, count), "zh") == say_counted(key, count, "zh")


def test_counts() -> None:
    assert [counted(number, "line") for number in (0, 1, 2000)] == ["0 lines", "1 line", "2,000 lines"]
