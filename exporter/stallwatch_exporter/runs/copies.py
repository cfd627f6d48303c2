"""Write copies of a run's log: the output of each rank, and the time of each piece.

A piece ends at a newline, or after a carriage return that ends one state of a progress bar. A replay of the
pieces prints the same bytes, except for secrets, which are masked before the pieces are written. If a line
is written in parts, it is split between words. Each part is checked for secrets together with the text
before it because half of a token does not look like a token.
"""

from __future__ import annotations

import calendar
import functools
import re
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from stallwatch_exporter.runs.reserve import append_whole
from stallwatch_rules.lines.ranks import take_rank
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import is_key_line, mask_key_end

_PIECE_END = lazy(rb"\n|\r(?=[^\n])")  # "\r\n" is one end. A "\r" at the end of the data waits for more data.
MAX_PIECE = 64 * 1024
UNFINISHED_SECONDS = 1.0  #: seconds after which an unfinished piece is written, so that crashes lose little
_CONTEXT = 1024  # maximum number of bytes of a line's previous text that are checked again with the next part
_BUFFERED = 1024 * 1024
_HELD = 4 * 1024 * 1024  # maximum size, in bytes, of unwritten data. The oldest bytes are dropped first.
_MOST_GAPS = 16
# Disk space that the copies leave free because the run's checkpoints need it more. On a small disk, the
# copies leave a fraction of the disk free.
_SPARE_BYTES, _SPARE_PART = 512 * 1024 * 1024, 20
_MOST_RANKS = 100_000
MOST_FILES = 20_000  #: Maximum number of log copies of a run. A log can contain any number of ranks.
_UNRANKED = "output.log"


class _Stream(msgspec.Struct):
    name: str
    held: bytes = b""
    held_ns: int = 0
    time: float = 0.0  #: time of the last bytes
    rank: int | None = None
    file: str | None = None  # file of the unfinished line, or None at the start of a line
    context: bytes = b""  # written part of the unfinished line
    after_key: bool = False  # whether the last line belonged to a private key


class Gap(msgspec.Struct):
    """Number of records that are missing from the copies, and the period of the gap."""

    lines: int
    since: float
    until: float


class RankCopies:
    """Writer that stores up to `max_bytes` bytes in ``ranks/rank<N>.log`` and ``output.log`` in `folder`."""

    def __init__(
        self,
        folder: Path,
        redact: Callable[[str], str],
        notice: Callable[[str], None],
        max_bytes: float = float("inf"),
    ) -> None:
        self.folder = folder
        self.lost = 0  #: number of pieces that could not be written
        self.gaps: list[Gap] = []  #: periods with missing pieces, in steady time
        self.files: set[str] = set()  #: files that have been written to, relative to the folder
        self._named: set[str] = set()  # files that were written to or have buffered records
        self._redact = redact
        self._notice = notice
        self._max_bytes = max_bytes
        self._written = 0
        self._streams: dict[str, _Stream] = {}
        self._buffer: deque[tuple[str, int, bytes]] = deque()  # file, time, and bytes of each record
        self._buffered = 0
        self._stuck = ""  # Reason why the last write failed. The next flush tries again.
        self._in_gap = False
        self._last_ns = 0
        self._reported: set[str] = set()

    def write(
        self,
        source: str,
        stream: str,
        data: bytes,
        time: float,
        rank: int | None = None,
        *,
        fresh: bool = False,
        lost: int = 0,
    ) -> None:
        """Add bytes that `source` printed to `stream`. If `rank` is given, all bytes are from this rank.

        If `fresh` is true, the bytes do not continue the previous bytes, so an unfinished line ends before
        the new bytes. `lost` is the number of missing lines before these bytes.
        """
        state = self._streams.setdefault(source, _Stream(stream))
        if lost:
            self._add_gap(lost, state.time or time, time)
        state.time = time
        if fresh and (state.held or state.file is not None):
            ended, state.held = state.held + b"\n", b""
            self._keep(state, self._redacted(state, [ended]), time, state.rank)
        state.rank = rank
        if not state.held:
            state.held_ns = self._stamp(time)
        text = state.held + data
        pieces, start = [], 0
        if b"\r" in text:
            for found in _PIECE_END.finditer(text):
                pieces.append(text[start : found.end()])
                start = found.end()
        else:
            start = text.rfind(b"\n") + 1
            pieces = text[:start].splitlines(keepends=True)
        while len(text) - start > MAX_PIECE:
            end = start + MAX_PIECE
            cut = _between_words(text, start, end) or _between_words(text, start, end, _MARKS) or end
            pieces.append(text[start:cut])
            start = cut
        self._keep(state, self._redacted(state, pieces), time, rank)
        if start and start < len(text):
            state.held_ns = self._stamp(time)
        state.held = text[start:]

    def flush(self, now: float, *, everything: bool = False) -> None:
        """Write overdue unfinished pieces, or all pieces if `everything` is true. Flush the buffer."""
        for state in self._streams.values():
            overdue = not 0 <= now * 1e9 - state.held_ns < UNFINISHED_SECONDS * 1e9
            if not state.held or not (everything or overdue):
                continue
            end = len(state.held) if everything else _between_words(state.held, 0, len(state.held))
            if end:
                held, state.held = state.held[:end], state.held[end:]
                self._keep(state, self._redacted(state, [held]), now, state.rank)
        self._to_disk(last=everything)

    def _stamp(self, time: float) -> int:
        # The times increase strictly across all streams because a replay merges the files by time.
        self._last_ns = max(self._last_ns + 1, int(time * 1e9))
        return self._last_ns

    def _keep(self, state: _Stream, pieces: list[bytes], time: float, rank: int | None) -> None:
        for piece in pieces:
            file = state.file or _file_of(rank, piece)
            if file not in self._named:
                if len(self._named) >= MOST_FILES:
                    file = _UNRANKED
                self._named.add(file)
            full = piece.endswith(b"\n")
            record = CriRecord(
                state.held_ns or self._stamp(time), state.name, full, piece[:-1] if full else piece
            )
            state.held_ns = 0
            line = format_record(record)
            self._buffer.append((file, record.time_ns, line))
            self._buffered += len(line)
            # After a carriage return, the output can continue with a different rank. Parts that a flush
            # split stay in the same file.
            state.file = None if full or piece.endswith(b"\r") else file
        if self._stuck:
            self._hold(self._stuck, _HELD)
        elif self._buffered > _BUFFERED:
            self._to_disk()

    def _redacted(self, state: _Stream, pieces: list[bytes]) -> list[bytes]:
        """Mask the secrets in the pieces that follow `state.context`."""
        if not pieces:
            return pieces
        whole = b"".join(pieces)
        text = (state.context + whole).decode("utf-8", "surrogateescape")
        # Check all pieces together first because secrets are rare.
        if state.after_key or self._redact(text) != text:
            context, masked = state.context, []
            for piece in pieces:
                masked.append(self._masked(context, piece))
                if state.after_key:
                    masked[-1] = _blot_key_end(masked[-1])
                state.after_key = is_key_line((context + piece).decode("utf-8", "surrogateescape"))
                context = _follow(context, masked[-1])
            pieces = masked
            whole = b"".join(pieces)
        state.context = _follow(state.context, whole)
        return pieces

    def _masked(self, context: bytes, piece: bytes) -> bytes:
        text = context + piece
        masked = self._redact(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        same = next(
            (at for at, (before, after) in enumerate(zip(text, masked, strict=False)) if before != after),
            None,
        )
        # If a secret began before this piece, this piece contains its mask.
        return masked[len(context) if same is None else min(len(context), same) :]

    def _to_disk(self, *, last: bool = False) -> None:
        """Write the buffer to the files. Keep records that cannot be written, except in the `last` call."""
        if not self._buffer:
            return
        most = 0 if last else _HELD
        if not last and self._written + self._buffered > self._max_bytes:
            size = f"{self._max_bytes / 1e9:.1f} GB"
            self._hold(
                f"the log copies reached {size}; from now on, only the end of the output is added", most
            )
            return
        try:
            disk = shutil.disk_usage(self.folder)
            # The last few lines of a run show why it ended, so they can use the reserved space.
            spare = 0 if last else min(_SPARE_BYTES, disk.total // _SPARE_PART)
            if disk.free < spare + self._buffered:
                self._hold(
                    "the disk is nearly full; no log copies are written until space is available", most
                )
                return
            self._write()
        except OSError as error:
            why = f"log copies cannot be written ({error.strerror}); the run continues without them"
            self._hold(why, most)
        else:
            self._stuck, self._in_gap = "", False

    def _write(self) -> None:
        """Append the records to their files. After an error, keep the records that were not written."""
        files: defaultdict[str, list[bytes]] = defaultdict(list)
        for file, _, record in self._buffer:
            files[file].append(record)
        done: set[str] = set()
        try:
            for file, records in files.items():
                data = b"".join(records)
                append_whole(self.folder / file, data)
                done.add(file)
                self._written += len(data)
                self._buffered -= len(data)
        finally:
            self.files |= done
            if len(done) == len(files):
                self._buffer.clear()
            else:
                self._buffer = deque(entry for entry in self._buffer if entry[0] not in done)

    def _hold(self, why: str, most: int) -> None:
        """Drop the oldest records until at most `most` bytes are in memory. Record the gap."""
        self._stuck = why
        while self._buffer and self._buffered > most:
            _, time_ns, record = self._buffer.popleft()
            self._buffered -= len(record)
            self.lost += 1
            self._add_gap(1, time_ns / 1e9, time_ns / 1e9, continued=self._in_gap)
            self._in_gap = True
        if why not in self._reported:
            self._reported.add(why)
            self._notice(why)

    def _add_gap(self, lines: int, since: float, until: float, *, continued: bool = False) -> None:
        if self.gaps and (continued or len(self.gaps) == _MOST_GAPS):
            gap = self.gaps[-1]
            gap.lines, gap.until = gap.lines + lines, max(gap.until, until)
        else:
            self.gaps.append(Gap(lines, since, until))


_BLANKS = (b" ", b"\t", b"\r")
_MARKS = (b'"', b"'", b",", b";", b"&")  # separators of words in text without blanks, such as dense JSON


def _between_words(text: bytes, start: int, end: int, marks: tuple[bytes, ...] = _BLANKS) -> int:
    """Return the position at which the last word begins, or 0 if there is only one word."""
    return max(text.rfind(mark, start, end) for mark in marks) + 1


def _follow(context: bytes, text: bytes) -> bytes:
    """After `text` was written, return the context for checking the next piece of the line."""
    start = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    return (context + text if not start else text[start:])[-_CONTEXT:]


def _blot_key_end(piece: bytes) -> bytes:
    return mask_key_end(piece.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _file_of(rank: int | None, piece: bytes) -> str:
    if b"]" in piece or b"ank" in piece or b"ANK" in piece:  # otherwise, no prefix can name a rank
        named, _, _ = take_rank(piece[:400].decode("utf-8", "replace"))
        rank = rank if named is None else named
    return _UNRANKED if rank is None or rank >= _MOST_RANKS else f"ranks/rank{rank}.log"


_RECORD = lazy(
    rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z (stdout|stderr) ([FP])(?: (.*))?",
    re.DOTALL,
)


class CriRecord(NamedTuple):
    """One record of a log copy."""

    time_ns: int  #: Unix time in nanoseconds
    stream: str  #: "stdout" or "stderr"
    full: bool  #: whether a newline follows the text
    text: bytes

    @property
    def printed(self) -> bytes:
        """Bytes that the program wrote."""
        return self.text + b"\n" if self.full else self.text


@functools.lru_cache(maxsize=16)
def _second(seconds: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()


def format_record(record: CriRecord) -> bytes:
    """Return one line of a log copy, including the newline. The text must not contain a newline."""
    seconds, nanos = divmod(record.time_ns, 1_000_000_000)
    flag = b"F" if record.full else b"P"
    return b"%b.%09dZ %b %b %b\n" % (_second(seconds), nanos, record.stream.encode(), flag, record.text)


def parse_record(line: bytes) -> CriRecord | None:
    """Parse one line of a copy, with or without its newline. Return ``None`` if it is not a record."""
    found = _RECORD.fullmatch(line[:-1] if line.endswith(b"\n") else line)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    try:
        seconds = calendar.timegm((year, month, day, hour, minute, second))
    except ValueError:  # the date does not exist
        return None
    nanos = int((found[7] or b"0").ljust(9, b"0"))
    return CriRecord(seconds * 1_000_000_000 + nanos, found[8].decode(), found[9] == b"F", found[10] or b"")
