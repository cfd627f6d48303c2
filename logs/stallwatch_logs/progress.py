"""Progress of reading several files, reported to whoever waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stallwatch_logs.inputs import InputProblem
from stallwatch_logs.log_files import LogFile

OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far and the total, both on disk."""


def on_bytes_read(progress: OnProgress | None, files: Sequence[LogFile]) -> Callable[[int], None]:
    """Return a callback that takes the bytes on disk read so far, out of all these files."""
    total = sum(file.size for file in files)
    return lambda read: None if progress is None else progress(read, total)


class ProgressReader:
    """Read files one after the other and report to `progress`; sizes of packed files are those on disk."""

    def __init__(self, files: Sequence[LogFile], progress: OnProgress | None) -> None:
        self._report = on_bytes_read(progress, files)
        self._done = 0

    def chunks(self, file: LogFile, problems: list[InputProblem], size: int = 0) -> Iterator[bytes]:
        """The pieces of one of the files; what is wrong with it goes into `problems`."""
        read = 0
        for chunk in file.chunks(problems, size=size):
            yield chunk
            read += len(chunk)
            self._report(self._done + min(read, file.size))
        self._done += file.size
