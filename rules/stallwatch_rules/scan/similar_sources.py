"""Group small sources that contain the same lines, and read only some sources of each group.

Reading a small source takes fifty times as long as searching it. Therefore, many small sources are joined and
searched together, with the same patterns as a long log (see ``patterns``). Sources with the same hits and the
same last line are of one kind. Sources with signs of a failure are read before the other sources.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.scan.patterns import WATCHES, ScanEngine
from stallwatch_rules.scan.segments import Segments, view_of
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import template_key

MANY = 512  #: minimum number of small sources for grouping; if there are fewer, all of them are read

#: Maximum number of sources with signs of a failure that are read: in total, and of one kind.
MOST_FAILED, OF_FAILED = 3072, 1024
#: Maximum number of sources without signs of a failure that are read: in total, and of one kind.
MOST_HEALTHY, OF_HEALTHY = 1024, 64
_TEXTS = 24  # maximum number of the `OF_HEALTHY` sources that are read because their templates are rare
_EXTREMES = 12  # number of the shortest sources to read, and number of the longest sources to read
_FAILED = ("traceback", "frame", "crash", "launcher")  # names of the watches that show a failure
_LAST = 4096  # number of bytes at the end of a source to search for the last line

# A line with which a program reports that it ended. Only the number in the line distinguishes success from
# failure.
_CODE = lazy(rb"(?i)(?:exit|return|status|code)\D{0,16}(\d{1,9})")

Signs = frozenset[int | bytes]  #: indexes of targets, and templates of lines that contain a severe word


class SourceOutline(NamedTuple):
    """The outline of a small source: a digest of its hits, and its end."""

    kind: bytes  #: digest of the hits and of the last line
    texts: bytes  #: digest of the templates of all lines
    lines: int
    failed: bool  #: True if a sign of a failure was found
    ended: float  #: time of the last line if the source failed (infinite if the line has no time)


def outline_sources(engine: ScanEngine, failures: Signs, sources: Sequence[bytes]) -> list[SourceOutline]:
    """Search small sources together and return an outline of each source.

    `failures` contains the indexes of the engine's search targets that indicate a failure.
    """
    views = [view_of(source) for source in sources]
    views = [view if view[-1:] == b"\n" else view + b"\n" for view in views]
    segments = Segments(b"".join(views))
    behind = list(accumulate(view.count(b"\n") + view.count(b"\r") for view in views))
    hits = engine.patterns.find(segments.view, segments)
    signs: list[set[int | bytes]] = [set() for _ in views]
    for order, pattern, _ in _by_source(behind, ((unit, pattern) for pattern, unit in hits.found)):
        signs[order].add(engine.target_of[pattern])
    for order, _, unit in _by_source(behind, ((unit, 0) for unit in hits.worded)):
        signs[order].add(template_key(segments.text(unit)))
    return [_outline(*parts, failures) for parts in zip(sources, views, signs, strict=True)]


def _by_source(behind: Sequence[int], found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """For each hit, yield the index of the source, the pattern, and the segment."""
    order = 0
    for unit, pattern in sorted(found):
        while unit >= behind[order]:
            order += 1
        yield order, pattern, unit


def _outline(source: bytes, view: bytes, signs: set[int | bytes], failures: Signs) -> SourceOutline:
    last = view[-_LAST:].replace(b"\r", b"\n").rstrip().rpartition(b"\n")[2]
    code = _CODE.search(last)
    ends = b"" if code is None else b"0" if not int(code[1]) else b"1"
    kind = _digest(*sorted(map(repr, signs)), template_key(last), ends)
    texts = _digest(*sorted(set(template_key(view).replace(b"\r", b"\n").split(b"\n"))))
    failed = not failures.isdisjoint(signs)
    lines = source.count(b"\n") + (source[-1:] != b"\n")
    return SourceOutline(kind, texts, lines, failed, _time_of(last) if failed else math.inf)


def _digest(*parts: str | bytes) -> bytes:
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.blake2b(b"\n".join(encoded), digest_size=8).digest()


def _time_of(line: bytes) -> float:
    reader = LineReader("")
    times = [parsed.time for parsed in chain(reader.feed(line), reader.finish()) if parsed.time is not None]
    return times[-1] if times else math.inf


def failure_targets(engine: ScanEngine, rules: Collection[str]) -> Signs:
    """Return the indexes of the targets that show a failure: the targets of `rules` and of crashes."""
    found = {number for number, target in enumerate(engine.targets) if target.page.id in rules}
    watches = len(engine.targets)
    return frozenset(found | {watches + n for n, watch in enumerate(WATCHES) if watch.name in _FAILED})


class Chosen(NamedTuple):
    """The sources to read, and the unread sources that contain the same lines as a source to read."""

    numbers: set[int]
    alike: dict[int, list[int]]  #: a source to read → the sources of its kind that are not read


def choose(found: Sequence[SourceOutline | None]) -> Chosen:
    """Choose the sources to read, based on the outlines of all sources."""
    outlines = {number: outline for number, outline in enumerate(found) if outline is not None}
    kinds: dict[bytes, list[int]] = {}
    for number, outline in outlines.items():
        kinds.setdefault(outline.kind, []).append(number)
    compositions = Counter(outline.texts for outline in outlines.values())
    firsts: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    others: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
    for numbers in kinds.values():
        has_failed = outlines[numbers[0]].failed
        if has_failed:
            order = sorted(numbers, key=lambda number: (outlines[number].ended, number))[:OF_FAILED]
        else:
            order = _healthy(numbers, outlines, compositions)
        firsts[has_failed].append((len(numbers), order[0]))
        others[has_failed] += ((outlines[number].ended, number) for number in order[1:])
    failed = [number for _, number in (*sorted(firsts[True]), *sorted(others[True]))]
    healthy = [number for _, number in (*sorted(firsts[False]), *others[False])]
    chosen = {*failed[:MOST_FAILED], *healthy[:MOST_HEALTHY]}
    alike: dict[int, list[int]] = {}
    for numbers in kinds.values():
        left = [number for number in numbers if number not in chosen]
        read = sorted((outlines[number].lines, number) for number in numbers if number in chosen)
        if left and read:
            alike[read[len(read) // 2][1]] = left
    return Chosen(chosen, alike)


def _healthy(
    numbers: Sequence[int], outlines: Mapping[int, SourceOutline], compositions: Counter[bytes]
) -> list[int]:
    """Choose which sources of one kind to read.

    The result contains sources with rare templates, short sources, long sources, and some other sources.
    """
    if len(numbers) <= OF_HEALTHY:
        return list(numbers)
    first_of: dict[bytes, int] = {}
    for number in numbers:
        first_of.setdefault(outlines[number].texts, number)
    rare = sorted(first_of.items(), key=lambda entry: (compositions[entry[0]], entry[1]))[:_TEXTS]
    ordered = sorted(numbers, key=lambda number: (outlines[number].lines, number))
    picked = dict.fromkeys([number for _, number in rare])
    picked |= dict.fromkeys(ordered[:_EXTREMES] + ordered[-_EXTREMES:])
    left = max(2, OF_HEALTHY - len(picked))
    last = len(ordered) - 1
    picked |= dict.fromkeys(ordered[round(number * last / (left - 1))] for number in range(left))
    return list(picked)
