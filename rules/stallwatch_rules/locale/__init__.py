"""Render messages in English and Chinese. No other module chooses a language.

`<language>/<area>.json` maps the keys of an area to templates for ``str.format``. A key that ends in ``-one``
is the template for ``count=1``. In addition to Python's own format specifications, a field can have the
following specifications:
* ``span``: Format seconds as a duration, such as ``42 s`` or ``3 min 10 s``.
* ``one|many``: If the number is 1, use the first word. Otherwise, use the second word.
* ``commas``, ``semicolons``, or ``brackets``: Join the items of a list in this way.
* ``capital``, alone or after a comma (``semicolons,capital``): Capitalize the first letter.

A test checks that both languages have the same keys with the same fields.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from stallwatch_rules.decoding import from_json
from stallwatch_rules.messages import PAGE, Message, Text
from stallwatch_rules.text.digest import duration_parts
from stallwatch_rules.text.lazy import lazy

T = TypeVar("T")

LANGUAGES = ("en", "zh")
_HERE = Path(__file__).parent
_BETWEEN = {"en": " ", "zh": ""}  # separator of sentences


def language_of(name: str) -> str:
    """Return the language for a name such as ``zh-CN``. The result is ``en`` unless the name is Chinese."""
    return "zh" if name.lower().startswith("zh") else "en"


@cache
def templates(language: str, area: str) -> Mapping[str, str]:
    """Return an area's templates in ``en`` or ``zh``. Raise ``FileNotFoundError`` for an unknown area."""
    text = (_HERE / language / f"{area}.json").read_bytes()
    return from_json(text, dict[str, str])


def render(text: Text, language: str = "en") -> str:
    """Return a message as text in a language. Text that is not a message is returned unchanged.

    Raises:
        KeyError: if the message is unknown, or if a parameter of its template is missing.
    """
    if isinstance(text, str):
        return text
    language = language_of(language)
    first = _rendered(text, language)
    return _BETWEEN[language].join([first, *(_rendered(later, language) for later in text.then)])


def say(id: str, /, language: str = "en", **params: str | int | float | Message | list[str | Message]) -> str:
    """Return the rendered text of a message. Use this function for text that is shown but not stored."""
    return render(Message(id, params), language)


def rendered(value: T, language: str = "en") -> T:
    """Return a record, list, tuple, or mapping in which all messages are rendered as text."""
    if isinstance(value, Message):
        return cast("T", render(value, language))
    if isinstance(value, msgspec.Struct):
        fields = {name: rendered(getattr(value, name), language) for name in value.__struct_fields__}
        return cast("T", type(value)(**fields))
    if isinstance(value, (list, tuple)):
        return cast("T", type(value)(rendered(item, language) for item in value))
    if isinstance(value, dict):
        return cast("T", {key: rendered(item, language) for key, item in value.items()})
    return value


def contains_message(text: Text, *ids: str) -> bool:
    """Return whether `text` is or contains one of these messages, including the wording of version 0.1."""
    if isinstance(text, Message):
        return text.has(*ids)
    for id in ids:
        area, _, key = id.partition(".")
        if any(_longest_words(templates(language, area)[key]) in text for language in LANGUAGES):
            return True
    return False


def _longest_words(template: str) -> str:
    return max((words for words, *_ in string.Formatter().parse(template)), key=len)


def _rendered(message: Message, language: str) -> str:
    if message.id == PAGE:
        return str(message.params[language])
    area, _, key = message.id.partition(".")
    known = templates(language, area)
    if message.params.get("count") == 1:
        key = f"{key}-one" if f"{key}-one" in known else key
    return _FORMATTERS[language].vformat(known[key], (), message.params)


def duration_text(seconds: float, language: str = "en") -> str:
    """Format a duration with the units of a language: ``83 ms``, ``4.26 s``, ``1 min 24 s``, ``2 d 3 h``."""
    (count, unit), *rest = duration_parts(seconds)
    if not rest:
        return say(f"span.{_UNITS[unit]}", language, count=count)
    ((further, smaller),) = rest
    return say(f"span.{_UNITS[unit]}-{_UNITS[smaller]}", language, count=count, rest=further)


_UNITS = {"d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds"}


class _Formatter(string.Formatter):
    def __init__(self, language: str) -> None:
        self._language = language
        self._separators = _SEPARATORS[language]

    def vformat(self, format_string: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        text = ""
        for words, name, spec, conversion in self.parse(format_string):
            text = _joined(text, words)
            if name is not None:
                value = self.convert_field(self.get_field(name, args, kwargs)[0], conversion)
                text = _joined(text, self.format_field(value, spec or ""))
        return text

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Message):
            value = render(value, self._language)
        spec, _, capital = (
            format_spec.rpartition(",") if format_spec.endswith("capital") else (format_spec, "", "")
        )
        if spec in self._separators:
            value = self._separators[spec].join(render(item, self._language) for item in value)
            spec = ""
            if format_spec == "brackets" and value:
                value = _BRACKETS[self._language].format(value)
        if spec == "span":
            text = value if isinstance(value, str) else duration_text(value, self._language)
        elif "|" in spec:
            text = spec.split("|")[value != 1]
        else:
            text = cast("str", super().format_field(value, spec))
        return text[:1].upper() + text[1:] if capital else text


def _joined(before: str, after: str) -> str:
    """Join two strings. A template's space between two Chinese characters is removed."""
    if before.endswith(" ") and _CHINESE.match(before[-2:-1]) and _CHINESE.match(after):
        return before[:-1] + after
    if after.startswith(" ") and _CHINESE.match(before[-1:]) and _CHINESE.match(after, 1):
        return before + after[1:]
    return before + after


_CHINESE = lazy(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_SEPARATORS = {
    "en": {"commas": ", ", "semicolons": "; ", "brackets": ", "},
    "zh": {"commas": "，", "semicolons": "；", "brackets": "，"},
}
_BRACKETS = {"en": " ({})", "zh": "（{}）"}
_FORMATTERS = {language: _Formatter(language) for language in LANGUAGES}
