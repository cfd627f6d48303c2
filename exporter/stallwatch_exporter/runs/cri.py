"""The format of log copies: the one Kubernetes' container runtimes write.

``2026-11-21T00:37:12.123456789Z stdout F text``: F closes a line, P ("partial") does not. A carriage return
stays in the text, so text + (newline if F) over all records of a stream is what was printed, byte for byte.
"""

from __future__ import annotations

import calendar
import functools
import re
import time
from typing import NamedTuple

from stallwatch_rules.text.lazy import lazy

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
        """The bytes that the program had written."""
        return self.text + b"\n" if self.full else self.text


@functools.lru_cache(maxsize=16)
def _second(seconds: int) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()


def format_record(record: CriRecord) -> bytes:
    """One line of a log copy, newline included. The text must hold no newline."""
    seconds, nanos = divmod(record.time_ns, 1_000_000_000)
    flag = b"F" if record.full else b"P"
    return b"%b.%09dZ %b %b %b\n" % (_second(seconds), nanos, record.stream.encode(), flag, record.text)


def parse_record(line: bytes) -> CriRecord | None:
    """The record in one line of a copy (its newline taken off or not); ``None`` when it is not one."""
    found = _RECORD.fullmatch(line[:-1] if line.endswith(b"\n") else line)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    nanos = int((found[7] or b"0").ljust(9, b"0"))
    return CriRecord(seconds * 1_000_000_000 + nanos, found[8].decode(), found[9] == b"F", found[10] or b"")
