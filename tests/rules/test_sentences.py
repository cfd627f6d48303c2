"""The sentences of a diagnosis in two languages."""

from __future__ import annotations

import pytest

from stallwatch_rules.sentences import retold, say


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
