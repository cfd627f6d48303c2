"""The sentences of a diagnosis in two languages."""

from __future__ import annotations

import pytest

from stallwatch_rules.text.digest import counted
from stallwatch_rules.text.retelling import retold
from stallwatch_rules.text.sentences import say, say_counted


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("silent", {"silence": "2.2 s", "threshold": "2.0 s"}),
        ("silent-by-watch", {}),
        ("ended-well", {}),
        ("rank-gone", {"ranks": "1"}),
        ("ranks-gone", {"ranks": "1, 2"}),
        ("rank-gone-early", {"ranks": "1", "step": "5", "total": "9"}),
        ("ranks-gone-early", {"ranks": "1, 2", "step": "5", "total": "9"}),
    ],
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


def test_a_note_of_several_sentences_is_retold_as_a_whole() -> None:
    def note(language: str, silence: str = "4.9 s") -> str:
        stands = say("stands", language, silence=silence, threshold="5.0 s")
        more = say("came-more-often", language, before="2", now="3.5")
        return stands + say("last-came-then", language) + more

    assert retold(note("en"), "zh") == note("zh")
    assert retold(note("zh"), "en") == note("en")
    assert retold(note("en"), "en", silence="7 min") == note("en", "7 min")
    assert retold(note("en"), "zh", silence="7 min") == note("zh", "7 min")
    named = say("left-early", "en", who=say("left-somebody", "en"), step=7)
    assert retold(f"Look there first: {named}", "zh") == say(
        "look-there", "zh", told=say("left-early", "zh", who=say("left-somebody", "zh"), step=7)
    )
    odd = say("unknown-may-be-cause", "en", exception="ValueError: no. 7. Look there")
    assert retold(odd, "zh") == say("unknown-may-be-cause", "zh", exception="ValueError: no. 7. Look there")


@pytest.mark.parametrize("key", ["overflow-start", "overflow-rare"])
def test_one_is_told_as_one_in_both_languages(key: str) -> None:
    assert say_counted(key, 1).startswith("One overflow")
    assert say_counted(key, 2).startswith("2 overflows")
    for count in (1, 2):
        assert retold(say_counted(key, count, "zh")) == say_counted(key, count)
        assert retold(say_counted(key, count), "zh") == say_counted(key, count, "zh")


def test_counts() -> None:
    assert [counted(number, "line") for number in (0, 1, 2000)] == ["0 lines", "1 line", "2,000 lines"]
