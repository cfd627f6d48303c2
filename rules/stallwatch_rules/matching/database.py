"""Cache compiled patterns on disk and search blocks of bytes for the patterns."""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
from pathlib import Path
from typing import Any

from stallwatch_rules.matching import disk_cache
from stallwatch_rules.pages.patterns import compile_hyperscan, hyperscan, hyperscan_flags

_KEPT = 12  #: maximum number of cached files; older files belong to earlier versions of the catalogue


Texts = tuple[tuple[str, bool], ...]  #: fixed strings, each with a flag for ignoring case


class DatabaseStore:
    """A compiler of patterns. If the compiler has a folder, it stores the compiled databases there."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def compiled(self, patterns: tuple[str, ...], texts: Texts = ()) -> Any:
        """Return the hyperscan database for these patterns and texts.

        The IDs of the texts in the database follow the IDs of the patterns.

        Raise ``hyperscan.error`` if the database cannot be compiled.
        """
        key = self.folder, patterns, texts
        if key not in _loaded:
            _loaded[key] = disk_cache.load_or_make(
                self.folder,
                "*.hsdb",
                (hyperscan.__version__, hyperscan_flags(), _processor(), patterns, texts),  # type: ignore[attr-defined]
                _KEPT,
                load=_load,
                make=lambda: compile_hyperscan(patterns, texts),
                dump=_dump,
            )
        return _loaded[key]


_loaded: dict[object, Any] = {}  # not limited, because a process uses few catalogues


def _dump(database: Any) -> bytes | None:
    with contextlib.suppress(hyperscan.error):
        return bytes(hyperscan.dumpb(database))
    return None


def _load(content: bytes) -> Any:
    """Load a database. Return ``None`` if it is damaged or was compiled for a different type of processor."""
    try:
        database = hyperscan.loadb(content, hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        # If the database was compiled for a different type of processor, loading succeeds, but a scan
        # fails.
        database.scan(b"x", match_event_handler=lambda *_: None)
    except Exception:  # a file that is not a database can raise any exception
        return None
    return database


@functools.cache
def _processor() -> str:
    """Return the features of this processor.

    A compiled database works only on processors with all of these features.
    """
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return line.partition(":")[2].strip()
    return platform.processor()


#: The ID of the pattern or text, and the end offset, of each match. Matches are sorted by end offset.
Hits = tuple[list[int], list[int]]


class BlockScanner:
    """A scanner that searches bytes for the patterns of a database. Several threads can share a scanner."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._local = threading.local()  # threads must not share scratch space

    def hits(self, data: bytes | memoryview, most: int | None = None) -> Hits:
        """Return all matches in a block. If `most` is given, return only the first `most` matches."""
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = hyperscan.Scratch(self._database)
        numbers: list[int] = []
        ends: list[int] = []
        add_number, add_end = numbers.append, ends.append

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add_number(number)
            add_end(end)

        def on_counted(number: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            add_number(number)
            add_end(end)
            return len(ends) == most  # hyperscan stops the scan if the result is True

        with contextlib.suppress(hyperscan.ScanTerminated):
            handler = on_match if most is None else on_counted
            self._database.scan(data, match_event_handler=handler, scratch=scratch)
        return numbers, ends
