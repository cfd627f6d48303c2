"""Lines too long to be kept whole: their beginning and their end are kept, what lies between is not.

A line that is a megabyte long (a dumped array, a bar drawn without end, a log whose line ends were lost) may
still end in the error that somebody looks for.
"""

from __future__ import annotations

from stallwatch_rules.text.encodings import decode_cut, decode_rest

MAX_LINE = 64 * 1024  #: bytes kept of a line
TAIL = 16 * 1024  #: of them from its end, where it is longer
HEAD = MAX_LINE - TAIL
CUT = "\n"  #: where something was left out of a line's text: it stands in no line
GOES_ON = "…"  #: before the end of a cut line, so that nothing takes it for a line's start


def hold(held: bytearray, data: bytes) -> None:
    """Add to an unfinished line what is to be kept of ``data``.

    A byte more than ``MAX_LINE`` tells that something was left out.
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
    """The text of a line that is longer than ``MAX_LINE``, with ``CUT`` between its beginning and its end."""
    return decode_cut(raw[:HEAD]) + CUT + decode_rest(raw[-TAIL:])


def joined(begun: str, text: str) -> str:
    """Both parts of a line as one, which may be cut."""
    whole = begun + text
    if len(whole) <= MAX_LINE:
        return whole
    whole = whole.replace(CUT, "")
    return whole[:HEAD] + CUT + whole[-TAIL:]
