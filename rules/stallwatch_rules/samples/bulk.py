"""All samples of a log in blocks: what ``table.RowReader`` gives for its lines, much faster.

hyperscan names the lines that may hold a sample or a time, lines of one wording are put together, and each
wording is read by the plan that ``plans`` learns from one of its lines. What has no plan is read by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stallwatch_rules.lines import LineReader
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.blocks import NO_RANK, Block, Floats, merged
from stallwatch_rules.samples.candidates import Candidates
from stallwatch_rules.samples.plans import Plan, apply, learn, single, stamp_time
from stallwatch_rules.samples.table import fields_of, is_bare, phase_of, tells
from stallwatch_rules.stamps import own_time

_DIGITS = b"0123456789"
_PACES = (b"it/s]", b"s/it]")
_NAMELESS = re.compile(
    rb" {0,2}\d{1,3}%\|[^|]*\| \d{1,15}/\d{1,15} \[[\d:]+<[\d:?]+, *\d+\.\d+(?:it/s|s/it)\]"
)
_STAY = b" \t\x0b\x0c\x1c\x1d\x1e\x1f\x85\x1b]),"  # what does not begin a line behind a bar
_DRAWN = bytes(range(128, 256)) + b" #"
_WORTH_A_PLAN = 6  #: so many lines of a wording
_MOST_PLANS = 20_000
_STAMP = 48  # bytes that a time at a line's start may have


@dataclass
class _Wording:
    """Lines that differ in their digits only."""

    example: bytes
    seen: int = 0
    learnt: bool = False
    plan: Plan | None = None


_Event = tuple[int, int, bytes]  # a segment: line, part of it, bytes


class BulkReader:
    """Reads the blocks of one source, each of whole lines, once its first lines were read line by line."""

    def __init__(self, reader: LineReader, candidates: Candidates) -> None:
        self._source, self._rank = reader.source, reader.rank
        self._number = reader.lines + 1
        self._times = dict(reader.times)
        self._near = reader.near  # the last time of any rank
        self._candidates = candidates
        self._wordings: dict[bytes, _Wording] = {}

    def read(self, data: bytes) -> Block:
        """The samples of a block, their ranks and times known, in the order of their lines."""
        found = self._candidates.lines(data)
        groups: dict[int, tuple[_Wording, list[_Event]]] = {}
        for line, start, end in found.lines:
            raw = data[start:end]
            if b"\r" in raw:
                for part, segment in enumerate(_redrawn(raw)):
                    if segment:
                        self._sort(segment, line, part, groups)
            else:
                self._sort(raw, line, 0, groups)
        clocks = [(line, _clock(data[start : start + _STAMP])) for line, start in found.clocks]
        block = self._rows(groups, clocks)
        self._number += found.size
        return block

    def _sort(
        self, raw: bytes, line: int, part: int, groups: dict[int, tuple[_Wording, list[_Event]]]
    ) -> None:
        at = raw.find(b"%|")
        if at >= 0:  # what a bar looks like does not matter
            bar = raw.find(b"|", at + 2)
            if bar > 0 and not raw[at + 2 : bar].translate(None, _DRAWN):
                raw = raw[: at + 2] + raw[bar:]
            end = (raw.find(b"it]") + 1 or raw.find(b"/s]") + 1) + 2
            if 2 < end < len(raw) and raw[end] not in _STAY:  # what was printed behind the bar is a line too
                self._sort(raw[:end], line, part, groups)
                raw = raw[end:]
        key = raw.translate(None, _DIGITS)
        wording = self._wordings.get(key)
        if wording is None:
            wording = _Wording(raw)
            if len(self._wordings) < _MOST_PLANS:
                self._wordings[key] = wording
        group = groups.get(id(wording))
        if group is None:
            group = groups[id(wording)] = wording, []
        group[1].append((line, part, raw))

    # ---- from wordings to rows

    def _rows(
        self, groups: dict[int, tuple[_Wording, list[_Event]]], clocks: list[tuple[int, float | None]]
    ) -> Block:
        odd: list[_Event] = []
        planned: list[tuple[Plan, list[_Event], list[Any]]] = []
        for wording, events in groups.values():
            wording.seen += len(events)
            if not wording.learnt and wording.seen >= _WORTH_A_PLAN:
                wording.plan, wording.learnt = learn(wording.example, self._rank), True
            plan = wording.plan
            if plan is None:
                odd += events
            elif plan.useful:
                planned.append((plan, *_matched(plan, events, odd)))
        return self._finished(planned, odd, clocks)

    def _finished(
        self,
        planned: list[tuple[Plan, list[_Event], list[Any]]],
        odd: list[_Event],
        clocks: list[tuple[int, float | None]],
    ) -> Block:
        block = Block(len(clocks) + sum(len(events) for _, events, _ in planned))
        at = len(clocks)
        if clocks:
            block.line[:at], block.time[:at] = zip(*clocks, strict=True)
            block.rank[:at] = NO_RANK if self._rank is None else self._rank
        for plan, events, rows in planned:
            _fill(block, slice(at, at + len(events)), plan, events, rows)
            at += len(events)
        block = block.taken(np.lexsort((block.part, block.line)))
        if odd:
            block = merged(block, self._single_lines(block, odd))
        block.line += self._number
        self._forward(block)
        return block.taken(_kept(block))

    def _single_lines(self, block: Block, odd: list[_Event]) -> Block:
        """Read the lines without a plan one by one; a time among the lines before them tells their year."""
        odd.sort(key=lambda event: (event[0], event[1]))
        timed = np.flatnonzero(~np.isnan(block.time))
        lines_timed, times = block.line[timed], block.time[timed]
        before = np.searchsorted(lines_timed, [event[0] for event in odd])
        carried = self._near
        rows: list[tuple[int, int, Line]] = []
        last: tuple[int, float] | None = None
        for event, index in zip(odd, before, strict=True):
            near = carried
            if index:
                near = float(times[index - 1])
            if last is not None and (not index or last[0] >= lines_timed[index - 1]):
                near = last[1]
            for line in single(event[2], self._source, self._rank, near):
                rows.append((event[0], event[1], line))
                if line.time is not None:
                    last = event[0], line.time
        out = Block(len(rows))
        for at, (number, part, line) in enumerate(rows):
            out.line[at], out.part[at] = number, part
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
            times = block.time[rows]
            latest = np.maximum.accumulate(np.where(np.isnan(times), -1, np.arange(len(rows))))
            carried = self._times.get(name, np.nan)
            block.time[rows] = np.where(latest >= 0, times[latest], carried)
            if latest[-1] >= 0:
                self._times[name] = float(times[latest[-1]])


def _redrawn(raw: bytes) -> list[bytes]:
    """The segments of a line; of nameless bars that follow one another, only the last counts."""
    segments = raw.split(b"\r")
    kept: list[bytes] = []
    nameless = False
    for segment in reversed(segments):
        is_bar = segment[-5:] in _PACES and _NAMELESS.fullmatch(segment) is not None
        if not (is_bar and nameless):
            kept.append(segment)
        if segment:
            nameless = is_bar
    kept.reverse()
    return kept


def _clock(start: bytes) -> float | None:
    return own_time(start.decode("utf-8", "replace"))


def _matched(plan: Plan, events: list[_Event], odd: list[_Event]) -> tuple[list[_Event], list[Any]]:
    """The lines that the plan reads, with its groups; those that it does not read are odd."""
    joined = b"\n".join([event[2] for event in events])
    rows = plan.reads.findall(joined)
    if len(rows) == len(events):
        return events, rows
    good: list[_Event] = []
    rows = []
    for event in events:
        found = plan.reads.fullmatch(event[2])
        if found is None:
            odd.append(event)
        else:
            good.append(event)
            rows.append(found.groups() if len(plan.groups) > 1 else found[found.lastindex or 0])
    return good, rows


def _fill(block: Block, at: slice, plan: Plan, events: list[_Event], rows: list[Any]) -> None:
    block.line[at] = [event[0] for event in events]
    block.part[at] = [event[1] for event in events]
    block.sample[at] = plan.sample
    block.bare[at] = plan.bare
    block.eval[at] = plan.constants.get("phase") == "eval"
    for name, value in plan.constants.items():
        if name in block.numbers and value is not None:
            block.numbers[name][at] = value
            block.valid[name][at] = True
        elif name == "rank" and value is not None:
            block.rank[at] = value
        elif name == "time" and value is not None:
            block.time[at] = value
    columns = [rows] if len(plan.groups) == 1 else list(zip(*rows, strict=True))
    for (name, factor), column in zip(plan.groups, columns, strict=False):
        if name == "time":
            block.time[at] = [np.nan if (t := stamp_time(text)) is None else t for text in column]
            continue
        numbers = _floats(column)
        if name == "rank":
            block.rank[at] = numbers.astype(np.int64)
            continue
        valid = np.ones(len(numbers), bool)
        if factor == 0.0:
            valid = numbers > 0
            numbers = np.divide(1.0, numbers, out=np.zeros(len(numbers)), where=valid)
        elif name == "total_steps":
            valid = numbers > 0
        elif factor != 1.0:
            numbers = apply(numbers, factor)  # type: ignore[arg-type, assignment]
        block.numbers[name][at] = numbers
        block.valid[name][at] = valid


def _floats(column: Any) -> Floats:
    texts = pa.array(column, pa.binary()).cast(pa.string())
    if b"," in column[0]:
        texts = pc.replace_substring(texts, ",", "")
    return texts.cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]


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
            block.numbers[name][at] = value
            block.valid[name][at] = True


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
