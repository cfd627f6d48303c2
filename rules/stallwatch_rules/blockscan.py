"""Many patterns looked for in a block of bytes at once, with hyperscan.

Nothing is decoded, and no Python runs where nothing is found.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from typing import Any

from stallwatch_rules.patterns import hyperscan


def available() -> bool:
    """Whether blocks can be scanned here; else logs are read line by line."""
    return hyperscan is not None and importlib.util.find_spec("numpy") is not None


class BlockScanner:
    """One compiled database. It may be used from several threads."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._local = threading.local()  # scratch space must not be shared between threads

    def scan(self, data: bytes | memoryview) -> tuple[list[int], list[int]]:
        """Where matches end, and of which patterns, in the order of their ends."""
        ends: list[int] = []
        patterns: list[int] = []
        add_end, add_pattern = ends.append, patterns.append

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add_end(end)
            add_pattern(pattern)

        self._database.scan(data, match_event_handler=on_match, scratch=self._scratch())
        return ends, patterns

    def each(self, data: bytes | memoryview, on_hit: Callable[[int, int], None]) -> None:
        """Tell (pattern, end) of every match."""

        def on_match(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
            on_hit(pattern, end)

        self._database.scan(data, match_event_handler=on_match, scratch=self._scratch())

    def _scratch(self) -> Any:
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = hyperscan.Scratch(self._database)
        return scratch
