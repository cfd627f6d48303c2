"""Detect whether bytes are text, and detect their encoding."""

from __future__ import annotations

import codecs
import re

from stallwatch_rules.text.lazy import lazy

#: Letters and marks in encodings of Western Europe: single bytes among ASCII, and two lowercase letters
#: after another letter ("créé", "Größe"). In GBK, these two letters are one rare character.
_WESTERN = lazy(
    rb"(?<![\x80-\xff])[\x80\x85\x91-\x97\xa0-\xff](?![\x80-\xff])"
    rb"|(?<=[A-Za-z])[\xdf-\xff]{2}(?![\x80-\xff])"
)
_ENCODINGS = ("cp1252", "gb18030")
# ASCII bytes. Removing these bytes and counting the remaining bytes is ten times as fast as searching for the
# other bytes.
_ASCII = bytes(range(0x80))
#: All bytes that cannot start a UTF-8 character of three or four bytes.
_NO_LEADS = bytes({*range(0x100)}.difference(range(0xE0, 0xF5)))


def decode_foreign(raw: bytes) -> str:
    """Use the most likely encoding to decode text that is not valid UTF-8.

    UTF-8 with some invalid bytes is decoded as UTF-8, with replacement characters. Other text is decoded
    either with the encoding of Western Europe (Windows-1252) or with the encoding of Chinese Windows
    (GB18030).
    """
    marked = raw.decode("utf-8", "replace")
    if _mostly_sound(marked):
        return marked
    possible = {name: text for name in _ENCODINGS if (text := _decoded(raw, name)) is not None}
    # Random bytes are not valid in either encoding.
    return possible.get(_foreign_encoding(raw), marked) if possible else marked


def _decoded(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return None


def decode_cut(raw: bytes) -> str:
    """Decode the beginning of a truncated line, except for an incomplete character at its end."""
    for encoding in ("utf-8", _foreign_encoding(raw)):
        try:
            return codecs.getincrementaldecoder(encoding)().decode(raw, False)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8", "replace")


def _mostly_sound(marked: str) -> bool:
    """Return whether decoded text contains more UTF-8 characters than invalid bytes.

    Pairs of bytes in GBK can look like two-byte characters in UTF-8, but rarely like longer characters.
    """
    broken = marked.count("\ufffd")
    long = len(marked.encode().translate(None, _NO_LEADS))
    return long > 2 * broken  # the replacement character is itself a long character


def _foreign_encoding(raw: bytes) -> str:
    """Guess the encoding. Non-ASCII bytes are single in most Western words but paired in Chinese text."""
    western = sum(map(len, _WESTERN.findall(raw)))
    return _ENCODINGS[0 if western and 2 * western >= len(raw.translate(None, _ASCII)) else 1]


def decode_rest(raw: bytes) -> str:
    """Decode the end of a line that was split, except for an incomplete character at its start."""
    for skipped in range(4):
        try:
            return raw[skipped:].decode()
        except UnicodeDecodeError:
            continue
    return decode_foreign(raw)


_BINARY_STARTS = (
    b"SQLite format 3",
    *b"PK\x03\x04 \x7fELF \x89PNG %PDF- \x1f\x8b \xfd7zXZ \x28\xb5\x2f\xfd BZh \x80\x02 \x80\x03".split(),
    *b"\x80\x04 \x80\x05 \x93NUMPY GGUF \xff\xd8\xff \xca\xfe\xba\xbe ustar".split(),
)
_CONTROL = bytes(set(range(32)) - set(b"\0\t\n\r\x07\x08\x0b\x0c\x1b"))


def looks_binary(head: bytes) -> bool:
    """Return whether the first bytes of a file show that the file is not a text file.

    Data is still text if it contains null bytes (holes in truncated logs) or control characters, or if its
    encoding is not UTF-8.
    """
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return False
    if head.startswith(_BINARY_STARTS):
        return True
    solid = head.lstrip(b"\0")
    if not solid:
        return False
    control = len(solid) - len(solid.translate(None, _CONTROL))
    holes = sum(map(len, re.findall(rb"\0{64,}", solid)))
    strange = control + solid.count(0) - holes
    return strange > 0.05 * len(solid) or (
        _not_utf8(solid) and (strange > 0.01 * len(solid) or _noise(solid))
    )


def _not_utf8(data: bytes) -> bool:  # damaged UTF-8 counts as UTF-8
    return not data.isascii() and data.decode(errors="replace").count("\ufffd") > 0.3 * len(data)


def _noise(data: bytes) -> bool:
    """Return whether the data is not Chinese and contains no ASCII letter, digit, or space.

    The output of programs is Chinese or contains at least one of these characters.
    """
    if re.search(rb"[A-Za-z0-9\s]", data):
        return False
    return all(_decoded(data[: len(data) - cut], "gb18030") is None for cut in range(4))
