"""From bytes to lines: ends, progress bars, encodings, ANSI codes, container records, ranks and times.

A ``LineReader`` is fed the bytes of one source in whatever portions they come, and gives the same lines for
every way of cutting them: nothing in here looks at where a portion begins or ends. Only whoever asks for what
has been ``idle`` gets a progress bar's segment that nothing has ended yet.
"""

from __future__ import annotations

import codecs
import re
from pathlib import PurePath

from stallwatch_rules.prefixes import TaskLabels, own_time, take_rank, unix_time
from stallwatch_rules.records import Line

MAX_LINE = 64 * 1024  #: bytes kept of a line

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)")
_CRI = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)"
    r" (stdout|stderr) ([FP])(?::\w+)?(?: |$)"
)
# Where one line holds what two writers wrote: after a progress bar's end, before another rank's prefix.
_GLUED = re.compile(r"(?<=\])(?<=it\]|/s\])(?=[^\s\]),])|(?<=[^\s:\]])(?=\[rank\d+\]:)")

_PREFIX_STARTS = frozenset("[(rRg0123456789")  # what a prefix or a timestamp may begin with
_Record = tuple[float | None, str, bool]  # time, stream, partial
_Partial = tuple[str, int, float | None]  # text, number, time


class LineReader:
    """Reads one source. ``rank`` is that of all its lines, unless a line names its own.

    A line's time is that of its container record (CRI); else ``time`` as given to ``feed`` (live reading);
    else the line's own timestamp; else the last one that its rank showed in this source.
    """

    def __init__(self, source: str, rank: int | None = None) -> None:
        self.source = source
        self.rank = rank
        self.cut = 0  #: lines that were longer than MAX_LINE
        self.bytes = 0  #: bytes fed
        self._head: bytes | None = b""  # the first bytes, until it is clear what the byte order mark says
        self._utf16: codecs.IncrementalDecoder | None = None
        self._held = bytearray()  # the unfinished segment, at most MAX_LINE + 1 bytes of it
        self._held_at: float | None = None  # when the last of it came, where `feed` was told
        self._redrawn = False  # it follows a carriage return
        self._number = 1
        self._line_start = True
        self._record: _Record | None = None  # the container record that this physical line is
        self._partials: dict[str, _Partial] = {}
        self._times: dict[int | None, float] = {}
        self._labels = TaskLabels()

    @property
    def lines(self) -> int:
        """Physical lines that ended so far."""
        return self._number - 1

    def feed(self, data: bytes, time: float | None = None) -> list[Line]:
        """The lines that ``data`` completes."""
        self.bytes += len(data)
        if self._head is not None:
            data = self._begin(data)
        if self._utf16 is not None:
            data = self._utf16.decode(data).encode("utf-8", "replace")
        lines = self._feed(data, time)
        if data:
            self._held_at = time
        return lines

    def idle(self, since: float) -> list[Line]:
        """The unfinished segment of a progress bar to which nothing was added after `since`.

        A bar's carriage return stands before it, so that its last state is ended by the next one: in a run
        that hangs, never. It is given once; whatever follows it is a segment of its own. An ordinary
        unfinished line stays held.
        """
        at = since if self._held_at is None else self._held_at
        out: list[Line] = []
        if self._held and self._redrawn and at <= since:
            raw, self._held = bytes(self._held), bytearray()
            self._segment(raw, False, at, out)
        return out

    def finish(self, time: float | None = None) -> list[Line]:
        """What is left when the source ends at `time`: an unfinished last line, unfinished records. They have
        the time at which they came, where that is known."""
        time = time if self._held_at is None else self._held_at
        data = b""
        if self._head:
            data, self._head = self._head, None
        if self._utf16 is not None:
            data = self._utf16.decode(data, True).encode("utf-8", "replace")
        out = self._feed(data, time)
        if self._held:
            raw, self._held = bytes(self._held), bytearray()
            self._segment(raw, True, time, out)
            self._next_line()
        left, self._partials = sorted(self._partials.values(), key=lambda p: p[1]), {}
        for text, number, stamp in left:
            self._emit(text, number, stamp, time, out)
        return out

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
        if b"\0" in data:  # holes that a truncated file leaves
            data = data.replace(b"\0", b"")
        out: list[Line] = []
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        room = MAX_LINE + 1 - len(self._held)
        if not end:
            self._held += data[: max(room, 0)]
            return out
        complete = bytes(self._held) + data[:end]
        self._held = bytearray(data[end : end + MAX_LINE + 1])
        self._redrawn = data[end - 1 : end] == b"\r"
        segment = self._segment
        labels = self._labels
        *ended, last = complete.split(b"\n")
        for physical in ended:
            if b"\r" in physical:
                *redrawn, physical = physical.split(b"\r")
                for raw in redrawn:
                    segment(raw, False, time, out)
            if physical and not (
                self._line_start
                and not (labels.searching or labels.found)
                and self._plain(physical, time, out)
            ):
                segment(physical, True, time, out)
            self._next_line()
        for raw in last.split(b"\r")[:-1]:
            segment(raw, False, time, out)
        return out

    def _next_line(self) -> None:
        self._number += 1
        self._line_start = True
        self._record = None

    def _plain(self, raw: bytes, time: float | None, out: list[Line]) -> bool:
        """The short way for most lines: those in which nothing has to be taken off, split or parsed."""
        if len(raw) > MAX_LINE:
            return False
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        if text[0] in _PREFIX_STARTS or "]" in text or "|" in text or "ank " in text or "\x1b" in text:
            return False
        rank = self.rank
        if time is not None:
            self._times[rank] = time
        else:
            time = self._times.get(rank)
        if not text.isspace():
            out.append(Line(text, self.source, self._number, rank, time))
        return True

    def _segment(self, raw: bytes, ends_line: bool, time: float | None, out: list[Line]) -> None:
        if len(raw) > MAX_LINE:
            raw = raw[:MAX_LINE]
            self.cut += 1
            text = _decode_cut(raw)
        else:
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = _decode_foreign(raw)
        if self._line_start:
            self._line_start = False
            if text[10:11] == "T" and text[4:5] == "-":
                found = _CRI.match(text)
                if found:
                    stamp = unix_time(found[1], found[2], found[3])
                    self._record = (stamp, found[4], found[5] == "P")
                    text = text[found.end() :]
        if self._record is None:
            self._emit(text, self._number, None, time, out)
        else:
            self._in_record(text, self._record, ends_line, time, out)

    def _in_record(
        self, text: str, record: _Record, ends_line: bool, time: float | None, out: list[Line]
    ) -> None:
        stamp, stream, partial = record
        number = self._number
        begun = self._partials.pop(stream, None)
        if begun:
            text, number, stamp = (begun[0] + text)[:MAX_LINE], begun[1], begun[2]
        if not text:
            return
        if ends_line and partial:  # the writer's flush or a runtime's 16 KiB limit: the line goes on
            self._partials[stream] = (text, number, stamp)
        else:
            self._emit(text, number, stamp, time, out)

    def _emit(self, text: str, number: int, stamp: float | None, time: float | None, out: list[Line]) -> None:
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        pieces = _GLUED.split(text) if "it]" in text or "/s]" in text or "[rank" in text else (text,)
        for piece in pieces:
            label = None
            if self._labels.searching or self._labels.found:
                label, piece = self._labels.take(piece)
            rank, piece = take_rank(piece)
            if not piece or piece.isspace():
                continue
            if rank is None:
                rank = self.rank if label is None else label
            when = stamp if stamp is not None else time
            if when is None:
                when = own_time(piece)
            if when is None:
                when = self._times.get(rank)
            else:
                self._times[rank] = when
            out.append(Line(piece, self.source, number, rank, when))


def _decode_foreign(raw: bytes) -> str:
    try:
        return raw.decode("gb18030")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def _decode_cut(raw: bytes) -> str:
    """A line that was cut, perhaps inside a character: that character goes, the others stay."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return codecs.getincrementaldecoder(encoding)().decode(raw, False)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")


_RANK_WORD = re.compile(r"([a-z]*)[_-]?rank[_-]?(\d{1,6})(?![\d])", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"(?:global[_-]?|local[_-]?)?rank[_-]?(\d{1,6})", re.IGNORECASE)
_NOT_A_RANK = ("lora", "low", "node", "machine", "adapter", "matrix", "f", "c", "p")


def rank_of_path(path: str) -> int | None:
    """The rank whose output a file holds, where its name or folder tells: ``rank_3.log``,
    ``attempt_0/3/stderr.log`` (torchrun's log folder), ``rank0/stdout.log``."""
    parts = PurePath(path.replace("!", "/")).parts
    if not parts:
        return None
    for before, digits in _RANK_WORD.findall(parts[-1]):
        if not before.lower().endswith(_NOT_A_RANK):
            return int(digits)
    for index in range(len(parts) - 2, -1, -1):
        found = _RANK_FOLDER.fullmatch(parts[index])
        if found:
            return int(found[1])
        if parts[index].isdigit() and index and parts[index - 1].startswith("attempt_"):
            return int(parts[index])
    return None


_BINARY_STARTS = (
    b"PK\x03\x04",
    b"\x7fELF",
    b"\x89PNG",
    b"%PDF-",
    b"\x1f\x8b",
    b"\xfd7zXZ",
    b"\x28\xb5\x2f\xfd",
    b"BZh",
    b"\x80\x02",
    b"\x80\x03",
    b"\x80\x04",
    b"\x80\x05",
    b"SQLite format 3",
    b"\x93NUMPY",
    b"GGUF",
    b"\xff\xd8\xff",
    b"\xca\xfe\xba\xbe",
    b"ustar",
)
_CONTROL = bytes(set(range(32)) - set(b"\0\t\n\r\x07\x08\x0b\x0c\x1b"))


def looks_binary(head: bytes) -> bool:
    """Whether the first bytes of a file say that it is no text. Holes of NUL bytes, which truncated logs
    have, stray control characters and foreign encodings are still text."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return False
    if head.startswith(_BINARY_STARTS):
        return True
    solid = head.lstrip(b"\0")
    if not solid:
        return False
    control = len(solid) - len(solid.translate(None, _CONTROL))
    nuls = solid.count(0) - _longest_holes(solid)
    return control + nuls > 0.05 * len(solid)


def _longest_holes(data: bytes) -> int:
    return sum(len(hole) for hole in re.findall(rb"\0{64,}", data))
