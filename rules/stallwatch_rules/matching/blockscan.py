"""A compiled hyperscan database, looked for in a block of bytes: nothing is decoded."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from stallwatch_rules.pages.patterns import hyperscan

Hits = tuple[list[int], list[int]]  #: numbers of patterns and where their matches end, in the ends' order


def available() -> bool:
    """Whether blocks can be scanned here; else logs are read line by line."""
    return hyperscan is not None


class BlockScanner:
    """One database. It may be used from several threads."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._local = threading.local()  # scratch space must not be shared between threads

    def hits(self, data: bytes | memoryview, most: int | None = None) -> Hits:
        """Every match, or the first ``most``."""
        numbers: list[int] = []
        ends: list[int] = []
        add_number, add_end = numbers.append, ends.append

        def on_match(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            add_number(number)
            add_end(end)

        def on_counted(number: int, _start: int, end: int, _flags: int, _context: object) -> bool:
            add_number(number)
            add_end(end)
            return len(ends) == most  # ends the scan

        with contextlib.suppress(hyperscan.ScanTerminated):
            self._database.scan(
                data,
                match_event_handler=on_match if most is None else on_counted,
                scratch=self._scratch(),
            )
        return numbers, ends

    def first(self, data: bytes | memoryview, most: int) -> list[int]:
        """Where the first matches end, at most so many."""
        return self.hits(data, most)[1]

    def _scratch(self) -> Any:
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = hyperscan.Scratch(self._database)
        return scratch
