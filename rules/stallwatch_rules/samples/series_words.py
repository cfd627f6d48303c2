"""Classify the numbers in a line as counters or metrics, based on their names.

``series.json`` contains the names in several languages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_rules.text.lazy import lazy

WORDS = msgspec.json.decode(
    Path(__file__).with_name("series.json").read_bytes(), type=dict[str, frozenset[str]]
)
_NAMES = WORDS["steps"] | WORDS["rounds"] | WORDS["metrics"]
_OURS = frozenset(word.encode() for word in _NAMES)
_LETTERS = bytes(code if chr(code).isalpha() and code < 128 else 32 for code in range(256))
_CASES = bytes(ord("a") if 97 <= code < 123 else ord("A") if 65 <= code < 91 else 32 for code in range(256))
_EXPONENTS = frozenset((b"e",))
_SCRIPTS = {
    kind: re.compile("|".join(word for word in sorted(words) if not word.isascii()))
    for kind, words in WORDS.items()
    if not all(map(str.isascii, words))
}
_WORD = lazy(r"(?!(?<=\d)e[-+]?\d)[^\W\d_]+(?:(?<=\bf)1\b|(?<=\br)2\b)?")
_CAMEL = lazy(r"(?<=[a-z])(?=[A-Z])")
_EPOCH = lazy(r"\b[eé]po[ckq]")  # start of "epoch" in most languages that use the Latin alphabet
_MEASURES = WORDS["metrics"] - WORDS["evaluations"] - {"train", "training", "learn"}
_BEHIND_NAME = " \t:=：#|([{,.'\"-<>"
# Words between the name of a counter and its number, as in "epoch number 3".
_NUMBERED = frozenset(("num", "number", "no", "no.", "nr", "index", "idx"))
#: A number. Commas also separate the cells of a row, as in "5,100,0.25".
NUMBER = lazy(
    r"[-+]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+(?!,?\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?![\d.]*\d)"
    r"|\b(?:nan|inf)\b"
)
_NO_COUNT = lazy(r"\d{1,15}|\d{1,3}(?:,\d{3})+")
_UNIT = lazy(
    r"\s?(?:s|secs?|seconds?|ms|us|min(?:utes)?|h|hours?|d|[kKMGT]i?B?|B|bytes|W|°C|Hz|x)(?![\w/])"
    r"|\s?\w*/s\b"
)


def parts(text: str) -> list[str]:
    """Return the words of the text in lowercase. Names such as ``AverageEpRet`` are split into words."""
    words, split = _WORD.findall(text.lower()), _CAMEL.sub(" ", text)
    return words if split == text else words + _WORD.findall(split.lower())


def is_of(kind: str, words: Sequence[str]) -> bool:
    """Return whether any of the words is in the list for this kind in ``series.json``."""
    known, script = WORDS[kind], _SCRIPTS.get(kind)
    return any(
        word in known or (script is not None and not word.isascii() and script.search(word) is not None)
        for word in words
    )


def may_count(text: str) -> bool:
    """Return whether a line can belong to a series, based on its words.

    The function returns true for every line that is not ASCII.
    """
    if not text.isascii():
        return True
    raw = text.encode()
    small = raw.lower()
    lower = small.translate(_LETTERS)
    words = lower.split()
    return (
        _EXPONENTS.issuperset(words)  # the line consists of numbers
        or not _OURS.isdisjoint(words)
        or b" epo" in lower
        or lower.startswith(b"epo")
        or b"f1" in small
        or (b"aA" in raw.translate(_CASES) and not _NAMES.isdisjoint(parts(text)))
    )


def counted_by(words: Sequence[str]) -> str:
    """Return the unit that a number with this name counts: ``steps``, ``rounds``, or an empty string."""
    if not _MEASURES.isdisjoint(words) or not WORDS["sizes"].isdisjoint(words):
        return ""  # the number is the length of an episode, or the mean reward of episodes
    if is_of("steps", words):
        return "steps"
    return "rounds" if is_of("rounds", words) or any(map(_EPOCH.match, words)) else ""


class Number(NamedTuple):
    """One number in the first line of a template."""

    words: tuple[str, ...]  #: words in the name of the number
    counts: str  #: the unit that the number counts, as indicated by its name
    whole: bool
    unit: bool  #: True if the number has a unit of time, size, or rate
    inside: bool  #: True if the number is part of a word
    start: int  #: offset at which the name of the number begins


def number_at(text: str, spans: Sequence[tuple[int, int]], place: int) -> Number:
    """Return the number at this index in a line, with its name."""
    start, end = spans[place]
    gap = text[spans[place - 1][1] if place else 0 : start].rstrip(_BEHIND_NAME)
    name = gap[gap.rfind(" ") + 1 :]
    if name.lower() in _NUMBERED:
        name = gap[gap.rfind(" ", 0, len(gap) - len(name) - 1) + 1 :]
    begin = start
    if any(map(str.isalpha, name)):
        begin = text.rfind(name, 0, start)
    words = tuple(parts(name))
    inside = start > 0 and (text[start - 1].isalpha() or text[start - 1] == "_") and not counted_by(words)
    counts = counted_by(words)
    after = text[end : end + 1]
    if not counts and after and not after.isascii():
        counts = counted_by(parts(text[end : end + 2]))
        inside = inside and not counts
    whole = _NO_COUNT.fullmatch(text, start, end) is not None
    unit = _UNIT.match(text, end) is not None
    if after.isascii() and after.isalpha() and not unit:
        inside = True
    return Number(words, counts, whole, unit, inside, begin)
