"""All samples of a log in blocks: what ``table.RowReader`` gives for its lines, much faster.

A log has many lines and few templates: what is left of its lines without the digits. Each template is looked
at once, and read by the plan that ``plans`` learns from one of its lines, without a step of Python's own for
a line. What has no plan is read by itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stallwatch_rules.lines.stamps import own_time
from stallwatch_rules.pages.patterns import hyperscan
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.blocks import (
    NO_RANK,
    Block,
    Columns,
    Floats,
    Whole,
    merged,
    place_losses,
    times_at,
)
from stallwatch_rules.samples.plans import PICTURE, Plan, learn, likened, shape, single
from stallwatch_rules.samples.table import BarSteps, fields_of, is_bare, phase_of, tells
from stallwatch_rules.scan.segments import all_ends
from stallwatch_rules.text.lazy import lazy

DIGITS = b"0123456789"

# One of these is in the template of every line that `extract` takes anything from; the line's end comes with
# it, so that a template is hit once.
_METRICS = (
    r"(?:[Ss][Tt][Ee][Pp]|[Ii][Tt][Ee][Rr]|[Ll][Oo][Ss][Ss]|[Nn][Uu][Mm]_[Uu][Pp][Dd]|OVERFLOW|overflow"
    r"|train_runtime|MA |MemAlloc|memory \(MB\) \||\xe2\x94\x81|Average reward|amples/sec:|Progress on:"
    r"|\xe6\x8d\x9f\xe5\xa4\xb1|\xcb\xf0\xca\xa7|s: t[re]l:|/ \[:*<)[^\n]*\n"
)
# So is this in that of a line which may tell the time: hours stand behind no letter but a "T".
_STAMPS = r"[^A-SU-Za-z_]::[^\n]*\n"
# A template of lines that begin with a full stamp; with neither of the words, they tell their source's time.
_CLOCK = lazy(rb"\[?--[ T]::")
_RANKED = (b"ank", b"ANK", b"[default", b"]<std", b"[trainer", b"[worker")
# Bars without a name or numbers of their own: of those that follow one another in a line, the last counts.
_NAMELESS = lazy(rb" {0,2}%\|\| / \[:+<(?::+|\?), *\.(?:it/s|s/it)\]")
_GLUED = lazy(rb"(?:it\]|/s\])(?=[!-~])[^\]),]")  # something was printed behind a bar's end

READ, CLOCK, BAR, EMPTY = 1, 2, 4, 8  #: kinds of templates, as flags
_MOST_TEMPLATES = 20_000
_MOST_BORING = 100_000
_LONG = 1000  # bytes of a template that is not kept in mind if it is boring
_MOST_GLUES = 4

Codes = np.ndarray[Any, np.dtype[np.int32]]
Kinds = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass
class Template:
    """Lines that differ in their digits (and in what a bar looks like) only."""

    kinds: int
    seen: int = 0
    learnt: bool = False
    plan: Plan | None = None


class Templates:
    """Those of one source. The first is that of all lines which hold nothing, the second that of none at all,
    the third stands for those that came when there were too many, the fourth for those that tell the time."""

    def __init__(self) -> None:
        self.all = [Template(0), Template(EMPTY), Template(READ, learnt=True), Template(CLOCK)]
        self.glues: set[bytes] = set()  #: what shows that a line was printed behind a bar
        self._names: dict[bytes, int] = {}
        self._codes = {b"": 1}
        self._boring = 0
        self._database = hyperscan.Database()
        patterns = [_METRICS.encode(), _STAMPS.encode()]
        self._database.compile(expressions=patterns, ids=[READ, CLOCK], elements=2, flags=[0, 0])
        self._scratch: Any = hyperscan.Scratch(self._database)

    def codes(self, texts: list[bytes]) -> Codes:
        """Which template each line has, by its place in ``all``; the lines come without their digits."""
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
        """The kinds of all templates."""
        return np.array([template.kinds for template in self.all], np.uint8)

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
            self._codes[new[index]] = self._template(new[index], kind)

    def _template(self, text: bytes, kind: int) -> int:
        text = PICTURE.sub(b"%||", text)
        if kind == CLOCK and _is_clock(text):
            return 3
        glue = _GLUED.search(text)
        if glue and len(self.glues) < _MOST_GLUES:
            self.glues.add(glue[0])
        index = self._names.get(text)
        if index is None:
            if len(self.all) >= _MOST_TEMPLATES:
                return 2
            index = self._names[text] = len(self.all)
            self.all.append(Template(READ | (BAR if _NAMELESS.fullmatch(text) else 0)))
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


_LF = 10
_RETURNS = bytes.maketrans(b"\r", b"\n")


class Picked(NamedTuple):
    """Some segments, in the order in which they were asked for."""

    places: Whole  #: which segment of the block
    data: bytes  #: their bytes, each with its line feed or carriage return
    ends: Any  #: where each begins, and where the last one ends

    def all(self) -> bytes:
        """All of them, each ended by a line feed."""
        return self.text(0, len(self.places))

    def text(self, first: int, behind: int) -> bytes:
        """Those from one to another, each ended by a line feed."""
        data = self.data[self.ends[first] : self.ends[behind]]
        return data.replace(b"\r", b"\n")


class Portion:
    """One block, cut at line feeds, carriage returns, and where a line stands behind a bar."""

    def __init__(self, data: bytes, templates: Templates) -> None:
        if b"\0" in data:  # holes that a truncated file leaves
            data = data.replace(b"\0", b"")
        known = -1
        while known < len(templates.glues):  # a template may show what is glued to bars in this log
            known = len(templates.glues)
            text = data
            for glue in templates.glues:
                text = text.replace(glue, glue[:3] + b"\r" + glue[3:])
            codes = templates.codes(text.translate(_RETURNS, DIGITS).split(b"\n"))[:-1]
        array = np.frombuffer(text, np.uint8)
        returns = b"\r" in text
        ends = all_ends(text)
        starts_line = np.ones(len(ends), bool)
        starts_line[1:] = array[ends[:-1]] == _LF
        self.templates: Codes = codes
        self.lines: Codes = np.cumsum(starts_line, dtype=np.int32) - 1  #: the line of each segment
        kinds = templates.kinds()[codes]
        if returns:  # only what a line begins with surely tells its time
            kinds[(kinds == CLOCK) & ~starts_line] = READ
        self.dropped = _redrawn_bars(kinds, self.lines)  #: bars that the next one of their line stands for
        kinds[self.dropped] = 0
        self.read: Whole = np.flatnonzero(kinds & READ)
        self._clocks: Whole = np.flatnonzero(kinds & CLOCK)
        offsets = np.concatenate([[0], ends + 1]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        self._segments = pa.Array.from_buffers(pa.binary(), len(ends), buffers)

    def pick(self, places: Whole) -> Picked:
        """The bytes of some segments."""
        taken = self._segments.take(pa.array(places))
        _, offsets, data = taken.buffers()
        ends = np.frombuffer(offsets, np.int32)[: len(places) + 1].tolist()
        return Picked(places, b"" if data is None else data.to_pybytes(), ends)

    def clocks(self, *, all_of_them: bool = False) -> Whole:
        """The lines that tell their source's time: those that one to be read, or the block's end, follows."""
        clocks = self._clocks
        if all_of_them or not len(clocks):
            return clocks
        followed = np.searchsorted(self.read, clocks)
        last: Whole = clocks[np.append(followed[:-1] != followed[1:], True)]
        return last


def _redrawn_bars(kinds: Kinds, lines: Codes) -> Whole:
    bars = np.flatnonzero(kinds & BAR)
    if not len(bars):
        return bars
    full = np.cumsum((kinds & EMPTY) == 0, dtype=np.int32)[bars]  # those between two bars count
    lines = lines[bars]
    followed: Whole = bars[:-1][(np.diff(full) == 1) & (lines[:-1] == lines[1:])]
    return followed


_WORTH_A_PLAN = 6  #: so many lines of a template
_STAMP = 48  # bytes that a time at a line's start may have

_Odd = tuple[int, bytes]  # a segment that is read by itself: its place, and its bytes


class _Planned(NamedTuple):
    """Segments that a plan has read."""

    plan: Plan
    places: Any
    rows: list[Any]


class BulkReader:
    """Reads the blocks of one source, each of whole lines, if a ``LineReader`` finds its lines ordinary."""

    def __init__(self, source: str, rank: int | None = None) -> None:
        self._source, self._rank = source, rank
        self._number = 1
        self._times: dict[int | None, float] = {}
        self._near: float | None = None  # the last time of any rank
        self._templates = Templates()
        self._bars = BarSteps()
        self._shapes: dict[bytes, Plan] = {}

    def read(self, data: bytes) -> Block:
        """The samples of a block, their ranks and times known, in the order of their lines."""
        with _uncollected():
            return self._read(data)

    def _read(self, data: bytes) -> Block:
        portion = Portion(data, self._templates)
        planned, odd = self._by_plans(portion)
        block = self._rows(portion, planned)
        if odd:
            block = merged(block, self._single_lines(block, odd))
        block.line = portion.lines[block.place].astype(np.int64) + self._number
        self._forward(block)
        self._number += int(portion.lines[-1]) + 1 if len(portion.lines) else 0
        block = block.taken(_kept(block))
        return place_losses(block, self._bars)

    def _by_plans(self, portion: Portion) -> tuple[list[_Planned], list[_Odd]]:
        templates = portion.templates[portion.read]
        order = np.argsort(templates, kind="stable")
        picked = portion.pick(portion.read[order])
        firsts = np.flatnonzero(np.diff(templates[order], prepend=-1)).tolist()
        planned: list[_Planned] = []
        odd: list[_Odd] = []
        bars = False  # whether a bar has to be read by itself
        for first, behind in pairwise([*firsts, len(order)]):
            template = self._templates.all[templates[order[first]]]
            text, places = picked.text(first, behind), picked.places[first:behind]
            plan = self._plan(template, text, behind - first)
            if plan is None or plan.useful:
                left = len(odd)
                if plan is None:
                    odd += zip(places.tolist(), text.split(b"\n"), strict=False)
                else:
                    planned.append(_matched(plan, places, text, odd))
                bars = bars or (template.kinds & BAR != 0 and len(odd) > left)
        if bars:  # then those before it are not left out for certain
            dropped = portion.pick(portion.dropped)
            odd += zip(
                portion.dropped.tolist(), dropped.text(0, len(dropped.places)).split(b"\n"), strict=False
            )
        return planned, odd

    def _plan(self, template: Template, text: bytes, count: int) -> Plan | None:
        template.seen += count
        if not template.learnt and template.seen >= _WORTH_A_PLAN:
            template.plan, template.learnt = self._learn(text[: text.find(b"\n")]), True
            if template.plan is not None and not template.plan.useful:
                template.kinds = 0
        return template.plan

    def _learn(self, example: bytes) -> Plan | None:
        like = shape(example)
        known = self._shapes.get(like)
        plan = known and likened(example, self._rank, known)
        if plan is None:
            plan = learn(example, self._rank)
            if plan is not None:
                self._shapes[like] = plan
        return plan

    # ---- from what was found to rows

    def _rows(self, portion: Portion, planned: list[_Planned]) -> Block:
        places, clocks = _clocks(portion)
        at = len(places)
        block = Block(at + sum(len(one.places) for one in planned))
        block.place[:at], block.time[:at] = places, clocks
        block.rank[:at] = NO_RANK if self._rank is None else self._rank
        columns = Columns(block)
        for plan, places, rows in planned:
            if rows:
                block.place[at : at + len(places)] = places
                columns.add(slice(at, at + len(places)), plan, rows)
                at += len(places)
        columns.convert()
        return block.taken(np.argsort(block.place, kind="stable"))

    def _single_lines(self, block: Block, odd: list[_Odd]) -> Block:
        """Read the lines without a plan one by one; a time among the lines before them tells their year."""
        odd.sort(key=lambda segment: segment[0])
        timed = np.flatnonzero(~np.isnan(block.time))
        timed_places, timed_at = block.place[timed], block.time[timed]
        before = np.searchsorted(timed_places, [place for place, _ in odd]).tolist()
        rows: list[tuple[int, Line]] = []
        last: tuple[int, float] | None = None
        for (place, raw), index in zip(odd, before, strict=True):
            near = float(timed_at[index - 1]) if index else self._near
            if last is not None and (not index or last[0] >= timed_places[index - 1]):
                near = last[1]
            for line in single(raw, self._source, self._rank, near):
                rows.append((place, line))
                if line.time is not None:
                    last = place, line.time
        out = Block(len(rows))
        for at, (place, line) in enumerate(rows):
            out.place[at] = place
            _put(out, at, line)
        return out

    def _forward(self, block: Block) -> None:
        """Lines without a time have the last one of their rank."""
        timed = np.flatnonzero(~np.isnan(block.time))
        if len(timed):
            self._near = float(block.time[timed[-1]])
        for rank in np.unique(block.rank):
            name = None if rank == NO_RANK else int(rank)
            rows = np.flatnonzero(block.rank == rank)
            known = block.time[rows]
            latest = np.maximum.accumulate(np.where(np.isnan(known), -1, np.arange(len(rows))))
            carried = self._times.get(name, np.nan)
            block.time[rows] = np.where(latest >= 0, known[latest], carried)
            if latest[-1] >= 0:
                self._times[name] = float(known[latest[-1]])


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for cycles of objects: a block's rows are many tuples and have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _matched(plan: Plan, places: Whole, text: bytes, odd: list[_Odd]) -> _Planned:
    """The lines that the plan reads, with its groups; those that it does not read are odd."""
    rows = plan.reads.findall(text)
    if len(rows) == len(places):
        return _Planned(plan, places, rows)
    good: list[int] = []
    rows = []
    for place, raw in zip(places.tolist(), text.split(b"\n"), strict=False):
        found = plan.reads.fullmatch(raw)
        if found is None:
            odd.append((place, raw))
        else:
            good.append(place)
            rows.append(found.groups() if len(plan.groups) > 1 else found[found.lastindex or 0])
    return _Planned(plan, good, rows)


def _clocks(portion: Portion) -> tuple[Whole, Floats]:
    """Which segments tell their source's time, and what it is."""
    picked = portion.pick(portion.clocks())
    starts = np.array(picked.ends[:-1], np.int64)
    bracketed = np.frombuffer(picked.data, np.uint8)[starts] == ord("[")
    known_times = times_at(picked.data, starts + bracketed)
    if known_times is not None:
        return picked.places, known_times
    picked = portion.pick(portion.clocks(all_of_them=True))
    lines = picked.all().split(b"\n")[:-1]
    found = np.array([own_time(line[:_STAMP].decode("utf-8", "replace")) for line in lines], np.float64)
    known = ~np.isnan(found)
    return picked.places[known], found[known]


def _put(block: Block, at: int, line: Line) -> None:
    """One line that was read by itself."""
    block.rank[at] = NO_RANK if line.rank is None else line.rank
    if line.time is not None:
        block.time[at] = line.time
    sample = extract(line)
    if sample is None or not tells(sample):
        return
    block.sample[at] = True
    block.bare[at] = is_bare(sample)
    block.eval[at] = phase_of(sample) == "eval"
    values: dict[str, float | None] = {
        "step": sample.step, "total_steps": sample.total_steps or None, **fields_of(sample)
    }  # fmt: skip
    for name, value in values.items():
        if value is not None:
            block.put(name, at, value)


def _kept(block: Block) -> Any:
    """The rows that hold a sample; of the bare drawings of a line the last, behind the line's other rows."""
    rows = np.flatnonzero(block.sample)
    lines, bare = block.line[rows], block.bare[rows]
    if not bare.any():
        return rows
    bars = rows[bare]
    last = np.append(lines[bare][1:] != lines[bare][:-1], True)
    others = rows[~bare]
    kept = np.concatenate([others, bars[last]])
    return kept[np.argsort(block.line[kept], kind="stable")]
