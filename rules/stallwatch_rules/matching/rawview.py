"""A cell as patterns see it: without colours, container escapes and foreign encodings, segment for segment.

Whatever is taken out, every line feed and carriage return stays, so that the n-th segment of the view is the
n-th of the cell.
"""

from __future__ import annotations

from stallwatch_rules.lines.containers import TEXTS
from stallwatch_rules.lines.unescape import TYPESET
from stallwatch_rules.text.controls import TERMINAL_CODES_IN_BYTES
from stallwatch_rules.text.encodings import decode_foreign
from stallwatch_rules.text.lazy import lazy

# What docker's json-file driver writes, and collectors whose first record has its text in sight.
_JSON_LINES = lazy(rb'\s*\{"(?:log":"|[^\n]{0,400}?"(?:%s)": ?")' % "|".join(TEXTS).encode())
_JSON_ESCAPES = (
    (b'\\"', b'"'),
    (b"\\u003c", b"<"),
    (b"\\u003e", b">"),
    (b"\\u0026", b"&"),
    (b"\\t", b"\t"),
    (b"\\u001b", b"\x1b"),
    (b"\\\\", b"\\"),
)

# What a page sets for quotes and blanks, as the reader of lines spells it (``lines.respelled``).
_TYPESET = tuple((character.encode(), plain.encode()) for character, plain in TYPESET.items())
_TYPESET_BEGINS = (b"\xe2\x80", b"\xc2\xa0", b"\xe3\x80\x80")


def is_plain(data: bytes | bytearray, end: int) -> bool:
    """Whether the first bytes are their own view and hold no NULs; ``False`` may be wrong."""
    return (
        _is_solid_ascii(data, end) and data.find(b"\x1b", 0, end) < 0 and not _JSON_LINES.match(data, 0, end)
    )


def _is_solid_ascii(data: bytes | bytearray, end: int) -> bool:
    """Whether the first bytes are ASCII's, and no NULs: signed, all others are below 1."""
    import numpy as np

    return not end or int(np.frombuffer(data, np.int8, end).min()) > 0


def view_of(data: bytes, *, solid: bool = False) -> bytes:
    """The cell's text in UTF-8, in which patterns are found that its lines match.

    ``solid``: it is known to be ASCII without escape characters; JSON may still spell some out.
    """
    if not solid and not data.isascii():
        data = _utf8(data)
        if any(begun in data for begun in _TYPESET_BEGINS):
            for character, plain in _TYPESET:
                data = data.replace(character, plain)
    if data[:1] in (b"{", b" ") and _JSON_LINES.match(data):
        for escape, character in _JSON_ESCAPES:
            data = data.replace(escape, character)
        solid = False  # an escape may stand there now
    if not solid and b"\x1b" in data:
        data = TERMINAL_CODES_IN_BYTES.sub(b"", data)
    return data


def _utf8(data: bytes) -> bytes:
    try:
        data.decode()
    except UnicodeDecodeError:
        return b"\n".join([_line(line) for line in data.split(b"\n")])
    return data


def _line(line: bytes) -> bytes:
    if line.isascii():
        return line
    return b"\r".join([_segment(segment) for segment in line.split(b"\r")])


def _segment(raw: bytes) -> bytes:
    """Decoded as the reader of lines does it."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return decode_foreign(raw).encode()
    return raw
