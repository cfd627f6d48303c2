"""Shorten lines that are too long to keep.

The beginning and the end of such a line (a dumped array, an endless progress bar, a log without line ends)
are kept, because the line can still end in an important error.
"""

from __future__ import annotations

from stallwatch_rules.text.encodings import decode_cut, decode_rest

MAX_LINE = 64 * 1024  #: maximum number of bytes kept of a line
TAIL = 16 * 1024  #: number of bytes kept from the end of a longer line
HEAD = MAX_LINE - TAIL
CUT = "\n"  #: mark of omitted text in a line, in which it cannot occur otherwise
GOES_ON = "…"  #: mark before the end of a shortened line, so that it is not taken for the start of a line


def append_bounded(held: bytearray, data: bytes) -> None:
    """Append ``data`` to an unfinished line, and drop bytes from the middle of a line that gets too long.

    A shortened line has ``MAX_LINE + 1`` bytes, which shows that text was omitted.
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
    """Return the text of a line longer than ``MAX_LINE``, with ``CUT`` between its beginning and its end."""
    return decode_cut(raw[:HEAD]) + CUT + decode_rest(raw[-TAIL:])


def joined(begun: str, text: str) -> str:
    """Return both parts of a line as one line, shortened if it is too long."""
    whole = begun + text
    if len(whole) <= MAX_LINE:
        return whole
    whole = whole.replace(CUT, "")
    return whole[:HEAD] + CUT + whole[-TAIL:]
