"""Decode external data into records (``msgspec.Struct``), in any thread.

msgspec 0.22 prepares a type at its first use and exposes the type to other threads before the preparation is
complete (``_core.c``, StructInfo_Convert). If two threads simultaneously use a type for the first time, the
process crashes. This module prepares each type under a lock. The import lock protects a module that decodes
data during its own import.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked child process does not have the thread that holds the lock
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def convert(data: object, kind: type[_T], **options: Any) -> _T:
    """Convert plain data to a record type with ``msgspec.convert``, safely in any thread."""
    _prepare(kind)
    found: _T = msgspec.convert(data, kind, **options)
    return found


def from_json(data: bytes | str, kind: type[_T], **options: Any) -> _T:
    """Decode JSON into a record type with ``msgspec.json.decode``, safely in any thread."""
    _prepare(kind)
    found: _T = msgspec.json.decode(data, type=kind, **options)
    return found


def from_msgpack(data: bytes, kind: type[_T]) -> _T:
    """Decode MessagePack into a record type with ``msgspec.msgpack.decode``, safely in any thread."""
    _prepare(kind)
    return msgspec.msgpack.decode(data, type=kind)


def _prepare(kind: Any) -> None:
    with _lock:
        _prepared(kind)


@functools.cache
def _prepared(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
