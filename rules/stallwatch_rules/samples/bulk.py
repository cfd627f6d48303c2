"""All samples of a log in blocks: what ``table.RowReader`` gives for its lines, much faster.

Segments of one wording are put together, and each wording is read by the plan that ``plans`` learns from one
of them, without a step of Python's own for a line. What has no plan is read by itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stallwatch_rules.lines.stamps import own_time
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.barsteps import BarSteps
from stallwatch_rules.samples.blocks import NO_RANK, Block, Floats, Whole, merged
from stallwatch_rules.samples.bulkbars import place_losses
from stallwatch_rules.samples.columns import Columns
from stallwatch_rules.samples.plans import Plan, learn, likened, shape, single
from stallwatch_rules.samples.portions import Portion
from stallwatch_rules.samples.stamptimes import times_at
from stallwatch_rules.samples.table import fields_of, is_bare, phase_of, tells
from stallwatch_rules.samples.wordings import BAR, Wording, Wordings

_WORTH_A_PLAN = 6  #: so many lines of a wording
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
        self._wordings = Wordings()
        self._bars = BarSteps()
        self._shapes: dict[bytes, Plan] = {}

    def read(self, data: bytes) -> Block:
        """The samples of a block, their ranks and times known, in the order of their lines."""
        with _uncollected():
            return self._read(data)

    def _read(self, data: bytes) -> Block:
        portion = Portion(data, self._wordings)
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
        wordings = portion.wordings[portion.read]
        order = np.argsort(wordings, kind="stable")
        picked = portion.pick(portion.read[order])
        firsts = np.flatnonzero(np.diff(wordings[order], prepend=-1)).tolist()
        planned: list[_Planned] = []
        odd: list[_Odd] = []
        bars = False  # whether a bar has to be read by itself
        for first, behind in pairwise([*firsts, len(order)]):
            wording = self._wordings.all[wordings[order[first]]]
            text, places = picked.text(first, behind), picked.places[first:behind]
            plan = self._plan(wording, text, behind - first)
            if plan is None or plan.useful:
                left = len(odd)
                if plan is None:
                    odd += zip(places.tolist(), text.split(b"\n"), strict=False)
                else:
                    planned.append(_matched(plan, places, text, odd))
                bars = bars or (wording.kinds & BAR != 0 and len(odd) > left)
        if bars:  # then those before it are not left out for certain
            dropped = portion.pick(portion.dropped)
            odd += zip(
                portion.dropped.tolist(), dropped.text(0, len(dropped.places)).split(b"\n"), strict=False
            )
        return planned, odd

    def _plan(self, wording: Wording, text: bytes, count: int) -> Plan | None:
        wording.seen += count
        if not wording.learnt and wording.seen >= _WORTH_A_PLAN:
            wording.plan, wording.learnt = self._learn(text[: text.find(b"\n")]), True
            if wording.plan is not None and not wording.plan.useful:
                wording.kinds = 0
        return wording.plan

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
