"""Progress of reading several files, reported to whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import FileIO

from stallwatch_logs.inputs import InputProblem
from stallwatch_logs.log_files import LogFile
from stallwatch_logs.portions import Room

OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far and the total, both on disk."""


def on_bytes_read(progress: OnProgress | None, files: Sequence[LogFile]) -> Callable[[int], None]:
    """Return a callback that takes the bytes on disk read so far, out of all these files."""
    total = sum(file.size for file in files)
    return lambda read: None if progress is None else progress(read, total)


class ProgressReader:
    """Read files one after the other and report to `progress`; sizes of packed files are those on disk."""

    def __init__(self, files: Sequence[LogFile], progress: OnProgress | None) -> None:
        self._progress = progress
        self._total = sum(file.size for file in files)
        self._done = 0

    def chunks(self, file: LogFile, problems: list[InputProblem]) -> Iterator[bytes]:
        """The pieces of one of the files; what is wrong with it goes into `problems`."""
        read = 0
        for chunk in file.chunks(problems):
            yield chunk
            read += len(chunk)
            self._report(file, read)
        self._done += file.size

    def poured(
        self, file: LogFile, raw: FileIO, start: int, room: Room, problems: list[InputProblem]
    ) -> Iterator[int]:
        """How many bytes of an opened file, from an offset on, were put into each ``room``."""
        read = start
        for count in file.poured(raw, start, room, problems):
            yield count
            read += count
            self._report(file, read)
        self._done += file.size

    def _report(self, file: LogFile, read: int) -> None:
        if self._progress is not None:
            self._progress(self._done + min(read, file.size), self._total)
