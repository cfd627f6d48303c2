"""What encoding bytes are in, and whether they are text at all."""

from __future__ import annotations

import codecs
import re


def decode_foreign(raw: bytes) -> str:
    """Text that is not UTF-8: Chinese Windows' encoding if it is that, else with marks for what is broken."""
    try:
        return raw.decode("gb18030")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


def decode_cut(raw: bytes) -> str:
    """A line that was cut, perhaps inside a character: that character goes, the others stay."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return codecs.getincrementaldecoder(encoding)().decode(raw, False)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")


def decode_rest(raw: bytes) -> str:
    """The end of a line that was cut, perhaps inside a character: that character goes."""
    for skipped in range(4):
        try:
            return raw[skipped:].decode()
        except UnicodeDecodeError:
            continue
    return decode_foreign(raw)


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
