"""The fixed texts of patterns kept between starts: parsing a thousand patterns takes half a second."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch_rules.matching import cachefolder, covers, seldom
from stallwatch_rules.matching.covers import Cover, Text, cover_of

_Kept = list[list[tuple[str, bool]] | None]
_KEPT = 4  #: lists of patterns that are kept, each in a file of its own


def covers_of(patterns: Sequence[str], folder: Path | None) -> list[Cover | None]:
    """``cover_of`` each; what an earlier start found for the same patterns is taken from the folder."""
    if folder is None:
        return [cover_of(pattern) for pattern in patterns]
    path = folder / f"covers-{_key(patterns)}.msgpack"
    found = _read(path)
    if found is not None and len(found) == len(patterns):
        return [None if one is None else frozenset(Text(*text) for text in one) for one in found]
    made = [cover_of(pattern) for pattern in patterns]
    plain = [None if one is None else [(text.text, text.caseless) for text in sorted(one)] for one in made]
    cachefolder.write(path, msgspec.msgpack.encode(plain))
    cachefolder.prune(folder, "covers-*.msgpack", _KEPT)
    return made


def _key(patterns: Sequence[str]) -> str:
    # Another way to choose texts chooses others.
    source = b"".join(Path(str(module.__file__)).read_bytes() for module in (covers, seldom))
    seen = hashlib.sha256(cachefolder.MADE_BY.encode() + b"\0" + source)
    for pattern in patterns:
        seen.update(b"\0" + pattern.encode("utf-8", "surrogatepass"))
    return seen.hexdigest()


def _read(path: Path) -> _Kept | None:
    content = cachefolder.read(path)
    try:
        return None if content is None else msgspec.msgpack.decode(content, type=_Kept)
    except (msgspec.MsgspecError, ValueError):
        return None
