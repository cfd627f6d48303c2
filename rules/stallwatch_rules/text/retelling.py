"""Sentences of a diagnosis told in another language, or with newer numbers.

A diagnosis is made once and in one language; those who read of it later may want another, and the time for
which a run has been standing has grown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.sentences import SENTENCES

_ENGLISH, _CHINESE = 0, 1
_PLACE = lazy(r"\\{(\w+)\\}")
_GROUP = r"(?P<\1>.{1,200}?)"
_ENDS = (r"(?!\S)", "")  #: behind a sentence, by language: "5.0 s." is not over at its first full stop


def retold(text: str, language: str = "en", **values: str) -> str:
    """Text of such sentences in the language; what is not made of them comes back as it is.

    `values` take the place of those in the text, where its sentences have such a place (``silence="7 min"``).
    """
    to = _CHINESE if language.startswith("zh") else _ENGLISH
    for spoken in (_ENGLISH, _CHINESE):
        if spoken != to or values:
            told = _told(text, spoken, to, values)
            if told is not None:
                return told
    return text


def _told(text: str, spoken: int, to: int, values: Mapping[str, str]) -> str | None:
    """The same in the language `to`; None where the text is not made of sentences."""
    text = text.strip()
    # One sentence after the other; only if that fails, one with full stops of its own in its values.
    for match in (re.Pattern.match, re.Pattern.fullmatch):
        for pattern, pair in _patterns(spoken):
            if (found := match(pattern, text)) is None:
                continue
            behind = text[found.end() :]
            rest = _told(behind, spoken, to, values) if behind else ""
            if rest is None:
                continue
            own = {
                name: _told(value, spoken, to, values) or value for name, value in found.groupdict().items()
            }
            told = pair[to].strip().format(**own | {name: values[name] for name in values.keys() & own})
            return told + (" " if rest and to == _ENGLISH else "") + rest
    return None


@cache
def _patterns(spoken: int) -> list[tuple[re.Pattern[str], tuple[str, str]]]:
    """A pattern of each sentence, the longest first: one may begin like another."""
    longest = sorted(SENTENCES.values(), key=lambda pair: -len(pair[spoken]))
    return [
        (re.compile(_PLACE.sub(_GROUP, re.escape(pair[spoken].strip())) + _ENDS[spoken]), pair)
        for pair in longest
    ]
