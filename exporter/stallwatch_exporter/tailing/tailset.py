"""Find and follow all files of one ``stallwatch tail``, and provide their positions for a restart."""

from __future__ import annotations

import errno
import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from stallwatch_exporter.tailing.tail import FileChunk, FileTailer, Position
from stallwatch_rules.text.encodings import looks_binary

_MAGIC = "*?["


class TailSet:
    """Files that match `patterns`: paths, globs (including ``**``), or folders that hold ``*.log`` files."""

    def __init__(
        self,
        patterns: Sequence[str],
        positions: dict[str, Position] | None = None,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._patterns = patterns
        self._known = positions or {}
        self._notice = notice
        self._refused: set[Path] = set()
        self._reported: set[object] = set()
        self.tailers: dict[Path, FileTailer] = {}

    def discover(self) -> list[Path]:
        """Return the files that have appeared since the last call."""
        new = []
        found: set[Path] = set()
        for pattern in self._patterns:
            try:
                found.update(_matches(pattern))
            except OSError as error:  # for example, a folder without permission
                self._cannot_look(Path(pattern), error)
        for path in sorted(found):
            if path in self.tailers or path in self._refused or not self._is_file(path):
                continue
            if _is_binary(path):
                self._refused.add(path)
                self._notice(f"{path} is not a text file and is not followed")
                continue
            self.tailers[path] = FileTailer(path, self._known.get(str(path)))
            new.append(path)
        return new

    def poll(self, paths: Iterable[Path] | None = None) -> Iterator[tuple[Path, FileChunk]]:
        """Yield the bytes that were appended to the files in `paths`, or to all files."""
        for path in list(self.tailers) if paths is None else paths:
            tailer = self.tailers.get(path)
            if tailer is not None:
                for portion in tailer.poll():
                    yield path, portion
                if tailer.problem is not None:
                    self._cannot_look(path, tailer.problem)

    @property
    def more(self) -> list[Path]:
        """Files that the last poll did not read to the end."""
        return [path for path, tailer in self.tailers.items() if tailer.more]

    @property
    def folders(self) -> set[Path]:
        """Folders to watch: the folders of the files, and folders in which new files can appear."""
        roots = {_root(pattern) for pattern in self._patterns}
        return {path.parent for path in self.tailers} | {root for root in roots if _is_dir(root)}

    @property
    def modified(self) -> float | None:
        """Time of the last write to any of the files."""
        times = [tailer.modified for tailer in self.tailers.values()]
        return max((time for time in times if time is not None), default=None)

    @property
    def positions(self) -> dict[str, Position]:
        """Current position in each file, from which a later `TailSet` can continue."""
        now = {str(path): tailer.position for path, tailer in self.tailers.items()}
        return {**self._known, **{path: position for path, position in now.items() if position is not None}}

    def close(self) -> None:
        """Close all files."""
        for tailer in self.tailers.values():
            tailer.close()

    def _is_file(self, path: Path) -> bool:
        try:
            return path.is_file()
        except OSError as error:
            self._cannot_look(path, error)
            return False

    def _cannot_look(self, path: Path, error: OSError) -> None:
        """Report an error once for each file and reason. Every poll tries to read the file again."""
        ours = error.errno in (errno.EMFILE, errno.ENFILE)  # the error concerns this process, not the file
        key = error.errno if ours else (path, error.errno)
        if key not in self._reported:
            self._reported.add(key)
            self._notice(f"{path} cannot be read at the moment ({error.strerror or error}); trying again")


def _matches(pattern: str) -> Iterator[Path]:
    path = Path(pattern)
    if path.is_dir():
        yield from path.rglob("*.log")
    elif path.exists() or not any(char in pattern for char in _MAGIC):
        yield path
    else:
        yield from map(Path, glob.iglob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern


def _root(pattern: str) -> Path:
    """Return the folder that contains all matches of a pattern."""
    path = Path(pattern)
    if _is_dir(path):
        return path
    fixed = []
    for part in path.parts[:-1]:
        if any(char in part for char in _MAGIC):
            break
        fixed.append(part)
    return Path(*fixed) if fixed else Path()


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_binary(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return looks_binary(file.read(4096))
    except OSError:
        return False
