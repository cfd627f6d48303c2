"""Shorten lines that are too long for storage.

Such a line can be a dumped array, a progress bar that never ends its line, or a log without line ends. The
beginning and the end of the line are kept, because the end can contain an important error.
"""

from __future__ import annotations

from stallwatch_rules.text.encodings import decode_cut, decode_rest

MAX_LINE = 64 * 1024  #: maximum number of bytes of a line that are kept
TAIL = 16 * 1024  #: number of bytes that are kept from the end of a longer line
HEAD = MAX_LINE - TAIL
CUT = "\n"  #: mark that replaces the removed text; it cannot occur elsewhere in a line
#: Mark before the end of a shortened line, which shows that this end is not the start of a line.
GOES_ON = "…"


def append_bounded(held: bytearray, data: bytes) -> None:
    """Append `data` to an unfinished line. If the line becomes too long, remove bytes from its middle.

    A shortened line has ``MAX_LINE + 1`` bytes. This length shows that bytes were removed.
    """
    if len(held) + len(data) <= MAX_LINE + 1:
        held += data
        return
    if len(data) > MAX_LINE + 1:
        held += data[: max(0, HEAD - len(held))]
        data = data[-TAIL - 1 :]
    held += data
    del held[HEAD : len(held) - TAIL - 1]


def decoded(raw: bytes) -> str:
    """Decode a shortened line to text. ``CUT`` replaces the removed bytes."""
    return decode_cut(raw[:HEAD]) + CUT + decode_rest(raw[-TAIL:])


def joined(begun: str, text: str) -> str:
    """Join two parts of a line. If the resulting line is too long, shorten it."""
    whole = begun + text
    if len(whole) <= MAX_LINE:
        return whole
    whole = whole.replace(CUT, "")
    return whole[:HEAD] + CUT + whole[-TAIL:]
