"""Convert bytes to lines with ranks and times.

Encodings, ANSI codes and container records are removed. A ``LineReader`` takes the bytes of one source in
portions. The lines do not depend on how the bytes are divided into portions, except that ``idle`` returns the
unfinished segment of a progress bar.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.containers import Record, may_be_json, record_of
from stallwatch_rules.lines.line_prefix import LinePrefix, first_lines, rank_in, time_in
from stallwatch_rules.lines.long_lines import CUT, GOES_ON, MAX_LINE, append_bounded, decoded, joined
from stallwatch_rules.lines.ranks import TaskLabels, may_have_labels, take_rank
from stallwatch_rules.lines.stamps import CANCELLED, has_zone, time_of_line
from stallwatch_rules.lines.unescape import (
    COLON,
    ESCAPED_END,
    MetricTables,
    exception_lines,
    lines_of_writers,
    with_ascii_colon,
    with_plain_quotes,
)
from stallwatch_rules.records import Line
from stallwatch_rules.text.controls import TERMINAL_CODES
from stallwatch_rules.text.encodings import decode_foreign

__all__ = ["MAX_LINE", "LineReader"]

# Brackets can be part of a prefix or a bar only in a line with one of these texts or an initial timestamp.
_BRACKETED = ("]:", "it]", "/s]", "[default", "ank", "ANK")

_PREFIX_STARTS = frozenset("[(rRg0123456789")  # first characters of a prefix or a timestamp
_LEVELS = frozenset(("INFO ", "WARNI", "ERROR", "DEBUG", "CRITI"))  # a timestamp can follow
_MAY_QUOTE = "{>"  # a record that contains an escaped string can follow
_Partial = tuple[str, int, float | None]  # text, line number and time of an unfinished record


class LineReader:
    """Reader that converts the bytes of one source to lines.

    ``rank`` is the rank of all lines that do not name one. The time of a line is the first of these that is
    known: the time of its container record (CRI, Docker), the ``time`` that ``feed`` receives in live
    reading, the timestamp in the line, and the last time of its rank in this source. ``lead`` is the prefix
    of the lines (see ``line_prefix``). ``local_ranks`` are the ranks of the host in ascending order, if lines
    can contain local ranks, as in torchrun's ``[default0]:``.
    """

    def __init__(
        self,
        source: str,
        rank: int | None = None,
        lead: LinePrefix | None = None,
        local_ranks: Sequence[int] = (),
    ) -> None:
        self.source = source
        self.rank = rank
        self.cut = 0  #: number of lines that were longer than MAX_LINE
        self.bytes = 0  #: number of bytes fed so far
        self._head: bytes | None = b""  # the first bytes, until they show whether there is a byte order mark
        self._utf16: codecs.IncrementalDecoder | None = None
        self._held = bytearray()  # the unfinished segment, at most MAX_LINE + 1 bytes of it
        self._held_at: float | None = None  # time at which the last bytes of ``_held`` arrived, if known
        self._redrawn = False  # True if the unfinished segment follows a carriage return
        self.number = 1  #: number of the next line
        self._line_start = True
        self._record: Record | None = None  # the container record in this physical line
        self._partials: dict[str, _Partial] = {}
        self._times: dict[int | None, float] = {}
        self._near: float | None = None  # the last time of any rank, for timestamps without a year
        self._zoned = False  # True if the last timestamp in a line had a zone
        self.contained = False  #: True if container records were among the lines
        self._labels = TaskLabels()
        self._tables = MetricTables()
        self.lead = lead
        self.local_ranks = local_ranks

    def alone(self, near: float | None, number: int = 1) -> LineReader:
        """Prepare the reader for single lines that do not follow one another; return the reader.

        The lines have no labels and were written at about the time ``near``. The state from earlier lines is
        discarded, so the reader can be used for many unrelated lines.
        """
        self._head, self._near, self.number = None, near, number
        self._times, self._zoned = {}, False
        self._labels.searching = False
        return self

    def look_ahead(self, head: bytes) -> LineReader:
        """Learn the labels of a file's lines from its head, before the lines are read; return the reader."""
        if may_have_labels(head):
            self._labels.learn(first_lines(head), alike=self.lead is None and b"\r" not in head)
        return self

    @property
    def ordinary(self) -> bool:
        """True if a line, except for the first lines, can be read without the lines around it."""
        odd = self._utf16 or self.lead or self.contained
        return not (odd or self._labels.searching or self._labels.found)

    def carried(self, rank: int | None, time: float | None) -> float | None:
        """Store `time` as the last time of a rank and return it; if it is ``None``, return the stored one."""
        if time is None:
            return self._times.get(rank)
        self._times[rank] = self._near = time
        return time

    @property
    def lines(self) -> int:
        """The number of physical lines that have ended so far."""
        return self.number - 1

    def feed(self, data: bytes, time: float | None = None) -> list[Line]:
        """Read a portion of bytes, and return the lines that end in it."""
        self.bytes += len(data)
        if self._head is not None:
            data = self._begin(data)
        if self._utf16 is not None:
            data = self._utf16.decode(data).encode("utf-8", "replace")
        lines = self._feed(data, time)
        if data:
            self._held_at = time
        return self._tables.take(lines)

    def skip(self, ends: int) -> list[Line]:
        """Skip bytes of the source that contain this many line ends; return the lines that were incomplete.

        The bytes before must end with a segment, or inside a line longer than ``MAX_LINE``, the rest of which
        is skipped. A partial record is not continued after the skipped bytes.
        """
        out: list[Line] = []
        if raw := self._unfinished():
            self._segment(raw, True, None, out)
        self._end_partials(None, out)
        self.number += ends
        self._line_start = True
        self._record = None
        return out

    def idle(self, since: float) -> list[Line]:
        """Return the unfinished segment of a progress bar, if no bytes were added to it after `since`.

        A progress bar prints a carriage return before each state, so only the next state ends a segment, and
        a run that hangs prints no next state. The segment is returned once; later bytes are a separate
        segment. An ordinary unfinished line is not returned.
        """
        at = since if self._held_at is None else self._held_at
        out: list[Line] = []
        if self._redrawn and at <= since and (raw := self._unfinished()):
            self._segment(raw, False, at, out)
        return out

    def finish(self, time: float | None = None) -> list[Line]:
        """Return the lines that are unfinished at the end of the source, including unfinished records.

        These lines have the time at which they arrived, if known, or else `time`.
        """
        time = time if self._held_at is None else self._held_at
        data = b""
        if self._head:
            data, self._head = self._head, None
        if self._utf16 is not None:
            data = self._utf16.decode(data, True).encode("utf-8", "replace")
        out = self._feed(data, time)
        if raw := self._unfinished():
            self._whole(raw, time, out)
        self._end_partials(time, out)
        return self._tables.take(out)

    def _unfinished(self) -> bytes:
        raw, self._held = bytes(self._held), bytearray()
        return raw

    def _end_partials(self, time: float | None, out: list[Line]) -> None:
        left, self._partials = sorted(self._partials.values(), key=lambda p: p[1]), {}
        for text, number, stamp in left:
            self._emit(text, number, stamp, time, out)

    def _begin(self, data: bytes) -> bytes:
        data = (self._head or b"") + data
        if len(data) < 3:
            self._head = data
            return b""
        self._head = None
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            self._utf16 = codecs.getincrementaldecoder("utf-16")("replace")
        elif data[:3] == codecs.BOM_UTF8:
            return data[3:]
        return data

    def _feed(self, data: bytes, time: float | None) -> list[Line]:
        if b"\0" in data:  # null bytes fill the holes in a truncated file
            data = data.replace(b"\0", b"")
        if b"\b" in data:  # Keras erases its bar with as many backspaces as it drew characters
            data = data.replace(b"\b", b"\r")
        out: list[Line] = []
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            append_bounded(self._held, data)
            return out
        complete = self._unfinished() + data[:end]
        append_bounded(self._held, data[end:])
        self._redrawn = data[end - 1 : end] == b"\r"
        *ended, last = complete.split(b"\n")
        for physical in ended:
            self._whole(physical, time, out)
        for raw in filter(None, last.split(b"\r")[:-1]):
            self._segment(raw, False, time, out)
        return out

    def _whole(self, raw: bytes, time: float | None, out: list[Line]) -> None:
        """Read a line, except for the segments of it that were already read after a carriage return."""
        if b"\r" in raw:
            *redrawn, raw = raw.split(b"\r")
            for segment in filter(None, redrawn):
                self._segment(segment, False, time, out)
        labels = self._labels
        labelled = labels.searching or labels.found or self.lead is not None
        if raw and not (self._line_start and not labelled and self._plain(raw, time, out)):
            self._segment(raw, True, time, out)
        self.number += 1
        self._line_start = True
        self._record = None

    def _plain(self, raw: bytes, time: float | None, out: list[Line]) -> bool:
        """Read a line in a fast way, which is possible if nothing in it must be removed, split or parsed.

        Return False, without reading the line, if it must be read in the slow way.
        """
        if len(raw) > MAX_LINE:
            return False
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        first = text[0]
        if first in _PREFIX_STARTS or "|" in text or "ank " in text or "\x1b" in text:
            return False
        if "]" in text and (first == " " or "A" <= first <= "Z" or may_hold(text, _BRACKETED)):
            return False
        if text[9:10] == ":" or text[:5] in _LEVELS or "Traceback" in text:
            return False
        if first == "s" and CANCELLED in text:
            return False
        if first in _MAY_QUOTE and (text[:2] == '{"' or ESCAPED_END in text):
            return False
        if "&" in text or not text.isascii():
            text = with_plain_quotes(text)
            if COLON in text:
                text = with_ascii_colon(text)
        rank = self.rank
        zoned = time is not None or self._zoned
        if time is not None:
            self._times[rank] = time
        else:
            time = self._times.get(rank)
        if not text.isspace():
            out.append(Line(text, self.source, self.number, rank, time, zoned))
        return True

    def _segment(self, raw: bytes, ends_line: bool, time: float | None, out: list[Line]) -> None:
        if len(raw) > MAX_LINE:
            self.cut += 1
            text = decoded(raw)
        else:
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = decode_foreign(raw)
        if self._line_start:
            self._line_start = False
            record = record_of(text) if text[10:11] == "T" or may_be_json(text) else None
            if record is not None:
                self._record = record
                self.contained = True
                *redrawn, text = record.text.split("\r")
                for piece in redrawn:
                    self._in_record(piece, record, False, time, out)
        if self._record is None:
            self._emit(text, self.number, None, time, out)
        else:
            self._in_record(text, self._record, ends_line, time, out)

    def _in_record(
        self, text: str, record: Record, ends_line: bool, time: float | None, out: list[Line]
    ) -> None:
        stream, stamp, number = record.stream, record.time, self.number
        begun = self._partials.pop(stream, None)
        if begun:
            text, number, stamp = joined(begun[0], text), begun[1], begun[2]
            self.cut += CUT in text and CUT not in begun[0]
        if not text:
            return
        # the line continues after the writer's flush or a runtime's 16 KiB limit
        if ends_line and record.partial:
            self._partials[stream] = (text, number, stamp)
        else:
            self._emit(text, number, stamp, time, out)

    def _emit(self, text: str, number: int, stamp: float | None, time: float | None, out: list[Line]) -> None:
        if "\x1b" in text:
            text = TERMINAL_CODES.sub("", text)
        text, cut, rest = text.partition(CUT)
        for piece in lines_of_writers(text):
            self._line(piece, number, stamp, time, out)
        if cut:
            owner = out[-1].rank if out and out[-1].number == number else None
            for piece in lines_of_writers(GOES_ON + rest):
                self._line(piece, number, stamp, time, out, owner)

    def _line(
        self,
        text: str,
        number: int,
        stamp: float | None,
        time: float | None,
        out: list[Line],
        label: int | None = None,
    ) -> None:
        if "&" in text or not text.isascii():
            text = with_plain_quotes(text)
        if label is None and (self._labels.searching or self._labels.found):
            label, text = self._labels.take(text)
        lead = ""
        if self.lead is not None:
            lead, text = self.lead.take(text)
        rank, bare = take_rank(text)
        if not bare or bare.isspace():
            return
        if rank is None and label is None:
            label = rank_in(lead) if lead else None
        if rank is None:
            rank = self.rank if label is None else label
        elif rank < len(self.local_ranks):
            rank = self.local_ranks[rank]
        when = stamp if stamp is not None else time
        zoned = when is not None or self._zoned
        # the prefix has the same clock in all lines; the lines' own clocks may be in different time zones
        if when is None and lead:
            when = time_in(lead)
            zoned = self._zoned = has_zone(lead) if when is not None else zoned
        if when is None:
            when = time_of_line(bare, self._near)
            if when is None and len(bare) < len(text):  # a journal's timestamp is part of its prefix
                when = time_of_line(text, self._near)
            if when is not None:
                zoned = self._zoned = has_zone(text)
        when = self.carried(rank, when)
        if COLON in bare:
            bare = with_ascii_colon(bare)
        if ESCAPED_END not in bare:
            out.append(Line(bare, self.source, number, rank, when, zoned))
            return
        for piece in exception_lines(bare):
            if piece and not piece.isspace():
                out.append(Line(piece, self.source, number, rank, when, zoned))
