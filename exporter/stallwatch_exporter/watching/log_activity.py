"""In the log of a quiet run, find signs of life and known messages that repeat.

`MovingLines` finds lines that no parser recognizes, such as ``val batch 12/80``. A line is a sign of life if
it meets three conditions. First, the line mentions batches, files, or similar units, or a position out of a
total. Second, lines with the same template have occurred twice before in the same quiet period. Third, an
integer in these lines has grown both times. Numbers that only follow the clock (``waited 20 s``), counts of
attempts (``retry 3``), and messages that also occur regularly while the run trains are not signs of life.
`Repeats` counts known messages, which are not signs of life either.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Line, Match
from stallwatch_rules.text.lazy import lazy

_CLOCK = lazy(r"\d{4}-\d\d-\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")
_NUMBER = lazy(r"\d+(?:\.\d+)?")
_NO_LIFE = lazy(
    r"retr(?:y|ies|ying)|attempt|wait|elapsed|heartbeat|time-?out|uptime|still |alive|watchdog|cache"
    r"|\btr(?:y|ies)\b|poll|not ready|running for|等待|重试|超时",
    re.IGNORECASE,
)
_BAR = lazy(r"\b(\d{1,12})/(\d{1,12}) ?\[")
_COUNTS = re.compile(
    r"\d\s*(?:/|of)\s*\d|batch|step|iter|sample|example|item|file|shard|token|row|record|document|chunk|epoch"
    r"|批|样本|步",
    re.IGNORECASE,
)
_AS_USUAL = 3.0  # a gap between steps is usual up to this multiple of the median gap
_CHATTER = 2  # a line is ignored after it has occurred in this many usual gaps
_LIKE_CLOCK = 0.05
_GAPS = 200
_MOST_TEMPLATES = 500
_OFTEN = 5  # minimum number of matches of a rule since the last sign of progress
_MORE = 3  # minimum ratio of this count to the largest earlier count between two signs of progress
_LONGEST = 500  # maximum number of characters that are examined in each line


class MovingBars:
    """Find progress bars that advance. An advance is a sign of life because the main thread draws bars."""

    def __init__(self) -> None:
        self._at: dict[tuple[int | None, str], int] = {}  # last count by rank and printed total

    def add(self, lines: Iterable[Line]) -> bool:
        """Add new lines and return whether a progress bar (tqdm or Keras style) advanced."""
        moved = False
        for line in lines:
            found = _BAR.search(line.text) if "[" in line.text else None
            if found is not None:
                bar, count = (line.rank, found[2]), int(found[1])
                moved = moved or count > self._at.get(bar, count)
                self._at[bar] = count
        if len(self._at) > _MOST_TEMPLATES:
            self._at.clear()
        return moved


class MovingLines:
    """Find log lines with counts that grow between two steps."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._stepped: float | None = None
        self._chatter: Counter[str] = Counter()  # number of usual gaps in which each template occurred
        self._seen: dict[str, _Last] = {}  # last line of each template in the current gap

    def stepped(self, now: float) -> None:
        """Record a step of the run at `now`."""
        if self._stepped is not None:
            gap = now - self._stepped
            if self._gaps and gap <= _AS_USUAL * median(self._gaps):
                self._chatter.update(self._seen.keys())
                if len(self._chatter) > _MOST_TEMPLATES:
                    self._chatter = Counter(dict(self._chatter.most_common(_MOST_TEMPLATES // 2)))
            if gap > 0:
                self._gaps.append(gap)
        self._stepped = now
        self._seen.clear()

    def add(self, lines: Iterable[Line], now: float) -> bool:
        """Add lines that were printed at `now`. Return whether any line is a sign of life."""
        alive = False
        for line in lines:
            text = line.text[:_LONGEST]
            if not any(map(str.isdigit, text)) or _NO_LIFE.search(text) or not _COUNTS.search(text):
                continue
            text = _CLOCK.sub("", text)
            template = f"{line.rank} {_NUMBER.sub('#', text)}"
            if self._chatter[template] >= _CHATTER:
                continue
            numbers = [float(number) for number in _NUMBER.findall(text)]
            before = self._seen.get(template)
            if before is not None:
                grew = _grew(before, now, numbers)
                alive = alive or any(
                    first and second for first, second in zip(before.grew, grew, strict=True)
                )
                self._seen[template] = _Last(now, numbers, grew)
            elif len(self._seen) < _MOST_TEMPLATES:
                self._seen[template] = _Last(now, numbers, [False] * len(numbers))
        return alive


class _Last(NamedTuple):
    """Last line with a certain template."""

    time: float
    numbers: Sequence[float]
    grew: Sequence[bool]  #: for each number, true if it had grown since the previous line


def _grew(before: _Last, now: float, numbers: Sequence[float]) -> list[bool]:
    """Return which numbers grew by an amount other than the elapsed seconds or milliseconds."""
    seconds = now - before.time

    def counts(grown: float) -> bool:
        clock = any(abs(grown - seconds * unit) <= _LIKE_CLOCK * seconds * unit for unit in (1.0, 1000.0))
        return grown > 0 and grown == int(grown) and (seconds < 1 or not clock)

    return [counts(new - old) for old, new in zip(before.numbers, numbers, strict=True)]


class Repeats:
    """Find known messages that repeat while no progress is made. Notices and harmless rules are ignored."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._counts = {
            rule
            for rule, page in catalogue.pages.items()
            if page.harm != "harmless" and page.role != "notice"
        }
        self._since: Counter[str] = Counter()  # matches by rule since the last sign of progress
        self._usual: Counter[str] = Counter()  # highest count of matches between signs of progress, by rule

    def add(self, matches: Sequence[Match], *, progressed: bool) -> None:
        """Add the matches of a batch of lines. `progressed` is True if the batch shows progress."""
        self._since.update(match.rule for match in matches if match.rule in self._counts)
        if progressed:
            for rule, count in self._since.items():
                self._usual[rule] = max(self._usual[rule], count)
            self._since.clear()

    def now(self) -> bool:
        """Return whether a known message repeats much more often than between earlier signs of progress."""
        return any(count >= max(_OFTEN, _MORE * self._usual[rule]) for rule, count in self._since.items())
