"""Compiled patterns kept between starts: compiling hundreds of them takes seconds, loading them a moment.

A file is only taken if it is what was written: by this version of hyperscan, for this processor, whole. What
cannot be read or written is compiled again, without a word: a cache is no promise.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stallwatch_rules.patterns import compile_hyperscan, hyperscan

_KEPT = 12  #: files; older ones are of catalogues that were changed


class DatabaseStore:
    """Compiles patterns, or loads what an earlier start has compiled; without a folder it only compiles."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def compiled(self, patterns: tuple[str, ...]) -> Any:
        """The hyperscan database of these patterns; raises ``hyperscan.error`` where there can be none."""
        if self.folder is None:
            return compile_hyperscan(patterns)
        path = self.folder / f"{_key(patterns)}.hsdb"
        database = _loaded.get(path)
        if database is None:
            database = _loaded[path] = _load(path) or self._compile(patterns, path)
        return database

    def _compile(self, patterns: tuple[str, ...], path: Path) -> Any:
        database = compile_hyperscan(patterns)
        with contextlib.suppress(Exception):  # a full disk, a folder that may not be written, anything
            content = hyperscan.dumpb(database)
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(content).digest() + content)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            _prune(path.parent)
        return database


_loaded: dict[Path, Any] = {}  # a process reads with few catalogues


def _load(path: Path) -> Any:
    try:
        content = path.read_bytes()
        digest, content = content[:32], content[32:]
        if hashlib.sha256(content).digest() != digest:
            return None
        database = hyperscan.loadb(content, hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        # A database of another processor is refused only when it is used.
        database.scan(b"x", match_event_handler=lambda *_: None)
    except Exception:
        return None
    return database


def _key(patterns: tuple[str, ...]) -> str:
    seen = hashlib.sha256()
    for part in (version("hyperscan"), platform.machine(), _processor(), *patterns):
        seen.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return seen.hexdigest()[:32]


@functools.cache
def _processor() -> str:
    """What the processor can do: the database is compiled for it."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return line.partition(":")[2].strip()
    return platform.processor()


def _prune(folder: Path) -> None:
    files = sorted(folder.glob("*.hsdb"), key=lambda path: path.stat().st_mtime)
    for path in files[:-_KEPT]:
        path.unlink(missing_ok=True)
