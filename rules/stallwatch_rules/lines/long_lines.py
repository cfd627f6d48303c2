"""Shorten lines that are too long to be stored.

Such a line can be a dumped array, an endless progress bar, or a log without line ends. Its beginning and its
end are kept, because it can still end in an important error.
"""

from __future__ import annotations

from stallwatch_rules.text.encodings import decode_cut, decode_rest

MAX_LINE = 64 * 1024  #: maximum number of bytes kept of a line
TAIL = 16 * 1024  #: number of bytes kept from the end of a longer line
HEAD = MAX_LINE - TAIL
CUT = "\n"  #: mark of omitted text in a line, in which it cannot occur otherwise
GOES_ON = "…"  #: mark before the end of a shortened line, so that it is not taken for the start of a line


def append_bounded(held: bytearray, data: bytes) -> None:
    """Append ``data`` to an unfinished line; if the line gets too long, remove bytes from its middle.

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
    """Return a shortened line as text, with ``CUT`` in place of the bytes that were removed."""
    return decode_cut(raw[:HEAD]) + CUT + decode_rest(raw[-TAIL:])


def joined(begun: str, text: str) -> str:
    """Join two parts of a line, and shorten the result if it is too long."""
    whole = begun + text
    if len(whole) <= MAX_LINE:
        return whole
    whole = whole.replace(CUT, "")
    return whole[:HEAD] + CUT + whole[-TAIL:]
