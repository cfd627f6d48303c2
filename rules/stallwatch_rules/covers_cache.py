"""The fixed texts of patterns kept between starts: parsing a thousand patterns takes half a second."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch_rules import covers
from stallwatch_rules.covers import Cover, Text, cover_of

_Kept = dict[str, list[list[tuple[str, bool]] | None]]  # by what they were made of
_KEPT = 4  #: lists of patterns that are kept
_NAME = "covers.msgpack"


def covers_of(patterns: Sequence[str], folder: Path | None) -> list[Cover | None]:
    """``cover_of`` each; what an earlier start found for the same patterns is taken from the folder."""
    if folder is None:
        return [cover_of(pattern) for pattern in patterns]
    key = _key(patterns)
    kept = _read(folder / _NAME)
    found = kept.pop(key, None)
    if found is not None and len(found) == len(patterns):
        return [None if one is None else frozenset(Text(*text) for text in one) for one in found]
    made = [cover_of(pattern) for pattern in patterns]
    newest = list(kept.items())[-(_KEPT - 1) :]
    plain = [None if one is None else [(text.text, text.caseless) for text in sorted(one)] for one in made]
    _write(folder, {**dict(newest), key: plain})
    return made


def _key(patterns: Sequence[str]) -> str:
    source = Path(covers.__file__).read_bytes()  # another way to choose texts chooses others
    return hashlib.sha256(source + "\0".join(patterns).encode()).hexdigest()


def _read(path: Path) -> _Kept:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _write(folder: Path, kept: _Kept) -> None:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.msgpack.encode(kept))
        Path(name).replace(folder / _NAME)
