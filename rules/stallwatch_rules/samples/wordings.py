"""The wordings of a log: what is left of its lines without the digits, and which of them hold anything.

A log has many lines and few wordings. Each wording is looked at once; that a line has it costs a look into a
dictionary, which for a block of lines needs no step of Python's own for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.samples.plans import PICTURE, Plan
from stallwatch_rules.text.lazy import lazy

DIGITS = b"0123456789"

# One of these is in the wording of every line that `extract` takes anything from; the line's end comes with
# it, so that a wording is hit once.
_METRICS = (
    r"(?:[Ss][Tt][Ee][Pp]|[Ii][Tt][Ee][Rr]|[Ll][Oo][Ss][Ss]|[Nn][Uu][Mm]_[Uu][Pp][Dd]|OVERFLOW|overflow"
    r"|train_runtime|MA |MemAlloc|memory \(MB\) \||\xe2\x94\x81|Average reward|amples/sec:|Progress on:"
    r"|\xe6\x8d\x9f\xe5\xa4\xb1|\xcb\xf0\xca\xa7|s: t[re]l:|/ \[:*<)[^\n]*\n"
)
# So is this in that of a line which may tell the time: hours stand behind no letter but a "T".
_STAMPS = r"[^A-SU-Za-z_]::[^\n]*\n"
# A wording of lines that begin with a full stamp; with neither of the words, they tell their source's time.
_CLOCK = lazy(rb"\[?--[ T]::")
_RANKED = (b"ank", b"ANK", b"[default", b"]<std", b"[trainer", b"[worker")
# Bars without a name or numbers of their own: of those that follow one another in a line, the last counts.
_NAMELESS = lazy(rb" {0,2}%\|\| / \[:+<(?::+|\?), *\.(?:it/s|s/it)\]")
_GLUED = lazy(rb"(?:it\]|/s\])(?=[!-~])[^\]),]")  # something was printed behind a bar's end

READ, CLOCK, BAR, EMPTY = 1, 2, 4, 8  #: kinds of wordings, as flags
_MOST_WORDINGS = 20_000
_MOST_BORING = 100_000
_LONG = 1000  # bytes of a wording that is not kept in mind if it is boring
_MOST_GLUES = 4

Codes = np.ndarray[Any, np.dtype[np.int32]]
Kinds = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class Wording:
    """Lines that differ in their digits (and in what a bar looks like) only."""

    kinds: int
    seen: int = 0
    learnt: bool = False
    plan: Plan | None = None


class Wordings:
    """Those of one source. The first is that of all lines which hold nothing, the second that of none at all,
    the third stands for those that came when there were too many, the fourth for those that tell the time."""

    def __init__(self) -> None:
        self.all = [Wording(0), Wording(EMPTY), Wording(READ, learnt=True), Wording(CLOCK)]
        self.glues: set[bytes] = set()  #: what shows that a line was printed behind a bar
        self._names: dict[bytes, int] = {}
        self._codes = {b"": 1}
        self._boring = 0
        self._database = hyperscan.Database()
        patterns = [_METRICS.encode(), _STAMPS.encode()]
        self._database.compile(expressions=patterns, ids=[READ, CLOCK], elements=2, flags=[0, 0])
        self._scratch: Any = hyperscan.Scratch(self._database)

    def codes(self, texts: list[bytes]) -> Codes:
        """Which wording each line has, by its place in ``all``; the lines come without their digits."""
        try:
            return self._looked_up(texts)
        except KeyError:
            new = list(set(texts).difference(self._codes))
        self._classify(new)
        codes = self._looked_up(texts)
        self._forget(new)
        return codes

    def _looked_up(self, texts: list[bytes]) -> Codes:
        return np.fromiter(map(self._codes.__getitem__, texts), np.int32, len(texts))

    def kinds(self) -> Kinds:
        """The kinds of all wordings."""
        return np.array([wording.kinds for wording in self.all], np.uint8)

    def _classify(self, new: Sequence[bytes]) -> None:
        self._codes.update(dict.fromkeys(new, 0))
        ends = np.cumsum([len(text) + 1 for text in new])
        hits: list[tuple[int, int]] = []
        joined = b"\n" + b"\n".join(new) + b"\n"

        def on_match(kind: int, _start: int, end: int, _flags: int, _context: object) -> None:
            hits.append((end, kind))

        self._database.scan(joined, match_event_handler=on_match, scratch=self._scratch)
        kinds: dict[int, int] = {}
        for index, (_, kind) in zip(np.searchsorted(ends, [end - 1 for end, _ in hits]), hits, strict=True):
            kinds[index] = kinds.get(index, 0) | kind
        for index, kind in kinds.items():
            self._codes[new[index]] = self._wording(new[index], kind)

    def _wording(self, text: bytes, kind: int) -> int:
        text = PICTURE.sub(b"%||", text)
        if kind == CLOCK and _is_clock(text):
            return 3
        glue = _GLUED.search(text)
        if glue and len(self.glues) < _MOST_GLUES:
            self.glues.add(glue[0])
        index = self._names.get(text)
        if index is None:
            if len(self.all) >= _MOST_WORDINGS:
                return 2
            index = self._names[text] = len(self.all)
            self.all.append(Wording(READ | (BAR if _NAMELESS.fullmatch(text) else 0)))
        return index

    def _forget(self, new: Sequence[bytes]) -> None:
        """Keep in mind only so much of what holds nothing."""
        codes = self._codes
        for text in new:
            if codes[text] in (0, 3):
                if len(text) > _LONG:
                    del codes[text]
                else:
                    self._boring += 1
        if self._boring > _MOST_BORING:
            self._codes = {text: code for text, code in codes.items() if code not in (0, 3)}
            self._boring = 0


def _is_clock(text: bytes) -> bool:
    """Whether the lines tell the time of their source, and nothing else."""
    found = _CLOCK.match(text)
    if found is None or any(word in text for word in _RANKED):
        return False
    return not (b"T" in found[0] and b"]: " in text)  # a journal's entry may hold a stamp of its own
