"""Convert bytes to lines that have a rank and a time.

A ``LineReader`` reads the bytes of one source in portions. It decodes the bytes and removes ANSI codes and
container records. The resulting lines do not depend on the sizes of the portions, with one exception:
``idle`` returns the unfinished segment of a progress bar.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.containers import Record, may_be_json, record_of
from stallwatch_rules.lines.line_prefix import LinePrefix, first_lines, rank_in, time_in
from stallwatch_rules.lines.long_lines import CUT, GOES_ON, MAX_LINE, append_bounded, decoded, joined
from stallwatch_rules.lines.ranks import TaskLabels, may_have_labels, take_rank
from stallwatch_rules.lines.stamps import CANCELLED, has_zone, may_have_time_key, time_of_line
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

# Brackets can be part of a prefix or a progress bar only in a line that contains one of these texts or starts
# with a timestamp.
_BRACKETED = ("]:", "it]", "/s]", "[default", "ank", "ANK")

_PREFIX_STARTS = frozenset("[(rRg0123456789")  # first characters of prefixes and timestamps
# First characters of levels that can precede a timestamp.
_LEVELS = frozenset(("INFO ", "WARNI", "ERROR", "DEBUG", "CRITI"))
_MAY_QUOTE = "{>"  # first characters of records that can contain an escaped string
_Partial = tuple[str, int, float | None]  # text, line number, and time of an unfinished record


class LineReader:
    """A reader that converts the bytes of one source into lines.

    `rank` is the rank of all lines that do not contain a rank. The time of a line is the first known time
    from this list: the time of the line's container record (CRI or Docker), the ``time`` that ``feed``
    receives for a live source, the timestamp in the line, and the last time of the line's rank in this
    source. `lead` is a prefix that all lines have (see ``line_prefix``). `local_ranks` are the ranks of
    the host in ascending order. They are used if lines contain local ranks, as in the torchrun prefix
    ``[default0]:``.
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
        self.cut = 0  #: number of lines longer than MAX_LINE
        self.bytes = 0  #: number of bytes read so far
        # The first bytes, until it is known whether they are a byte order mark.
        self._head: bytes | None = b""
        self._utf16: codecs.IncrementalDecoder | None = None
        self._held = bytearray()  # the unfinished segment, shortened to at most MAX_LINE + 1 bytes
        # Time at which the last bytes of ``_held`` arrived, if it is known.
        self._held_at: float | None = None
        self._redrawn = False  # True if the unfinished segment follows a carriage return
        self.number = 1  #: line number of the next line
        self._line_start = True
        self._record: Record | None = None  # the container record in the current physical line
        self._partials: dict[str, _Partial] = {}
        self._times: dict[int | None, float] = {}
        # The latest time from any rank, which is needed to parse timestamps without a year.
        self._near: float | None = None
        self._zoned = False  # True if the last timestamp in a line had a time zone
        self.contained = False  #: True if at least one line was a container record
        self._labels = TaskLabels()
        self._tables = MetricTables()
        self.lead = lead
        self.local_ranks = local_ranks

    def alone(self, near: float | None, number: int = 1) -> LineReader:
        """Prepare the reader for single, nonconsecutive lines, and return the reader.

        Such lines have no labels and were written at approximately the time `near`. The state from earlier
        lines is discarded, so the same reader can be used for many unrelated lines.
        """
        self._head, self._near, self.number = None, near, number
        self._times, self._zoned = {}, False
        self._labels.searching = False
        return self

    def look_ahead(self, head: bytes) -> LineReader:
        """Learn the labels of a file's lines from the head of the file before its lines are read.

        Return the reader.
        """
        if may_have_labels(head):
            self._labels.learn(first_lines(head), alike=self.lead is None and b"\r" not in head)
        return self

    @property
    def ordinary(self) -> bool:
        """True if every line after the first lines can be read independently of the lines around it."""
        odd = self._utf16 or self.lead or self.contained
        return not (odd or self._labels.searching or self._labels.found)

    def carried(self, rank: int | None, time: float | None) -> float | None:
        """Store `time` as the last time of a rank and return it.

        If `time` is ``None``, return the stored time.
        """
        if time is None:
            return self._times.get(rank)
        self._times[rank] = self._near = time
        return time

    @property
    def lines(self) -> int:
        """The number of physical lines that are complete."""
        return self.number - 1

    def feed(self, data: bytes, time: float | None = None) -> list[Line]:
        """Read a portion of bytes and return the lines that end in this portion."""
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
        """Skip bytes that contain `ends` line ends and return the lines that the skipped bytes cut off.

        The bytes that were read before must end with a complete segment, or inside a line longer than
        ``MAX_LINE``. The rest of such a line is skipped. A partial record does not continue after the skipped
        bytes.
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
        """If no bytes were added to a progress bar's unfinished segment after `since`, return the segment.

        A progress bar prints a carriage return before each state. Therefore, only the next state ends a
        segment, and a stalled run never prints another state. The segment is returned only once. Bytes
        that arrive later start a new segment. An ordinary unfinished line is not returned.
        """
        at = since if self._held_at is None else self._held_at
        out: list[Line] = []
        if self._redrawn and at <= since and (raw := self._unfinished()):
            self._segment(raw, False, at, out)
        return out

    def finish(self, time: float | None = None) -> list[Line]:
        """Return the lines and records that are unfinished at the end of the source.

        These lines have the time at which they arrived. If this time is unknown, they have the time `time`.
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
        if b"\0" in data:  # holes in a truncated file consist of null bytes
            data = data.replace(b"\0", b"")
        # To erase its progress bar, Keras prints one backspace for each character of the bar.
        if b"\b" in data:
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
        """Read a line, excluding segments that were already read because they end with a carriage return."""
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
        """If no part of a line needs to be removed, split, or parsed, read the line quickly.

        Otherwise, return False without reading the line.
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
        if first == "{" and may_have_time_key(text):
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
        # A record is partial if the writer flushed the text before the line ended, or if the runtime split
        # the line at 16 KiB.
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
        host = ""
        if label is None and (self._labels.searching or self._labels.found):
            label, host, text = self._labels.take(text)
        lead = ""
        if self.lead is not None:
            lead, text = self.lead.take(text)
        rank, process, bare = take_rank(text)
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
        # The timestamps in the prefix are from the same clock in all lines. The timestamps after the prefix
        # can be in different time zones.
        if when is None and lead:
            when = time_in(lead)
            zoned = self._zoned = has_zone(lead) if when is not None else zoned
        if when is None:
            stamped = bare
            when = time_of_line(bare, self._near)
            # A journal's timestamp is part of the removed prefix.
            if when is None and len(bare) < len(text):
                stamped = text
                when = time_of_line(text, self._near)
            if when is not None:
                zoned = self._zoned = has_zone(stamped)
        when = self.carried(rank, when)
        if COLON in bare:
            bare = with_ascii_colon(bare)
        if ESCAPED_END not in bare:
            out.append(Line(bare, self.source, number, rank, when, zoned, host, process))
            return
        for piece in exception_lines(bare):
            if piece and not piece.isspace():
                out.append(Line(piece, self.source, number, rank, when, zoned, host, process))
