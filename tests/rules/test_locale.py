"""Messages: both languages are complete, and a message has the same parameters in each."""

from __future__ import annotations

import string
from pathlib import Path

import msgspec
import pytest

import stallwatch_rules.locale as locale
from stallwatch_rules.locale import LANGUAGES, render, rendered, say, templates
from stallwatch_rules.messages import Message, Text, bilingual, has, message, with_params

FOLDER = Path(locale.__file__).parent
AREAS = sorted(path.stem for path in (FOLDER / "en").glob("*.json"))


def fields(template: str) -> set[str]:
    """Return the fields of a template; a count may decide the ending of a word in one language only."""
    names = {
        name.partition(".")[0] for _, name, _, _ in string.Formatter().parse(template) if name is not None
    }
    return names - {"count"}


def test_every_language_has_every_file() -> None:
    assert AREAS
    for language in LANGUAGES:
        assert sorted(path.stem for path in (FOLDER / language).glob("*.json")) == AREAS


@pytest.mark.parametrize("area", AREAS)
def test_languages_have_the_same_messages_and_parameters(area: str) -> None:
    english, chinese = (templates(language, area) for language in LANGUAGES)
    assert list(english) == list(chinese)
    assert {key: fields(text) for key, text in english.items()} == {
        key: fields(text) for key, text in chinese.items()
    }


@pytest.mark.parametrize("area", AREAS)
def test_english_messages_are_complete(area: str) -> None:
    english = templates("en", area)
    assert [key for key, text in english.items() if "-" in text and key.endswith(text)] == []


class Record(msgspec.Struct):
    note: Text
    lines: list[Text]


def test_stored_message_is_shown_in_either_language() -> None:
    note = message("diagnosis.stands", silence="4.9 s", threshold="5.0 s") + message(
        "diagnosis.last-came-then"
    )
    stored = msgspec.json.decode(msgspec.json.encode(Record(note, ["as it was"])), type=Record)
    assert stored.note == note
    assert rendered(stored, "en").note == (
        "No step has finished for 4.9 s, and the stall threshold of this run is 5.0 s. "
        "These messages continued until the steps stopped."
    )
    assert render(with_params(note, silence="7 min"), "zh-CN") == (
        "已经 7 min没有新的 step，本次训练的卡住阈值为 5.0 s。这些消息一直持续到 step 停止。"
    )
    assert rendered(stored, "zh").lines == ["as it was"]
    assert has(note, "diagnosis.last-came-then")
    assert not has("a sentence", "diagnosis.stands")


def test_singular_has_its_own_template() -> None:
    assert say("diagnosis.overflow-start", count=1).startswith("One overflow")
    assert say("diagnosis.overflow-start", count=2).startswith("2 overflows")


def test_message_can_be_a_parameter_of_another() -> None:
    named = message("diagnosis.look-there", told=bilingual("See the log.", "请看日志。"))
    assert render(named) == "Start here: See the log."
    assert render(named, "zh") == "请从这里查起：请看日志。"


def test_lists_counts_and_capitals_are_localized(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "en": {"x": "{who:capital} {count:waits|wait} in {calls:brackets}; {calls:semicolons,capital}"},
        "zh": {"x": "{who}{count:|都}停在{calls:brackets}，{calls:commas}"},
    }
    monkeypatch.setattr(locale, "templates", lambda language, area: known[language])
    calls: list[str | Message] = ["a", bilingual("b", "乙")]
    assert say("test.x", who="rank 1", count=1, calls=calls) == "Rank 1 waits in  (a, b); A; b"
    assert say("test.x", "zh", who="rank 1", count=2, calls=calls) == "rank 1都停在（a，乙），a，乙"
    assert say("test.x", who="rank 1", count=2, calls=[]).startswith("Rank 1 wait in ;")


def test_no_space_between_chinese_characters() -> None:
    params = {"ranks": "rank 5", "hosts": Message("stacks.many-hosts", {"count": 12})}
    assert render(Message("stacks.holds-up-on", params), "zh") == "卡在 12 台主机上的 rank 5"
    params["hosts"] = "节点 三"  # a value keeps its own spaces
    assert render(Message("stacks.holds-up-on", params), "zh") == "卡在节点 三上的 rank 5"


def test_unknown_message_is_an_error() -> None:
    with pytest.raises(KeyError):
        render(Message("diagnosis.nothing"))
