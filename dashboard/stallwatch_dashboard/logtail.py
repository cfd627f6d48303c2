"""The end of a run's log copies, rank by rank, for the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path

from stallwatch_exporter.runs.cri import parse_record
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.text.controls import TERMINAL_CODES, without_controls
from stallwatch_rules.text.redact import redact

_MOST_BYTES = 256 * 1024
_MOST_CHARACTERS = 2000  #: of one line


@dataclass(frozen=True)
class LogCopy:
    """One file of a run's folder."""

    path: Path
    rank: int | None  #: None: lines whose rank is not known

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Another one once the file was written to: name, bytes and time in ns; zeros where it is gone."""
        try:
            stat = self.path.stat()
        except OSError:
            return (self.path.name, 0, 0)
        return (self.path.name, stat.st_size, stat.st_mtime_ns)


def copies(folder: Path) -> list[LogCopy]:
    """The log copies of a run: ranks in order, then the lines of unknown rank."""
    ranks = [LogCopy(path, rank_of_path(path.name)) for path in (folder / "ranks").glob("*.log")]
    found = sorted(ranks, key=lambda copy: (copy.rank is None, copy.rank or 0, copy.path.name))
    rest = folder / "output.log"
    return [*found, LogCopy(rest, None)] if rest.is_file() else found


def end_of(path: Path, most: int) -> bytes:
    """The lines that lie whole within the last `most` bytes of a file; nothing where it cannot be read."""
    try:
        with path.open("rb") as copy:
            size = copy.seek(0, 2)
            copy.seek(max(0, size - most))
            end = copy.read(most)
    except OSError:
        return b""
    return end if size <= most else end.partition(b"\n")[2]


def tail(path: Path, lines: int = 200, zone: tzinfo | None = None) -> str:
    """The last lines of one copy with the time of day before each; secrets are masked.

    Of a progress bar, which redraws one line, only the last picture is shown.
    """
    shown: list[str] = []
    begun = b""
    for line in end_of(path, _MOST_BYTES).split(b"\n"):
        record = parse_record(line)
        if record is None:
            continue
        begun += record.text
        if not record.full:
            continue
        text, begun = as_drawn(begun), b""
        if text:
            shown.append(f"{datetime.fromtimestamp(record.time_ns / 1e9, zone):%H:%M:%S}  {text}")
    if text := as_drawn(begun):
        shown.append(f"{'…':>8}  {text}")
    return "\n".join(shown[-lines:])


def as_drawn(raw: bytes) -> str:
    """What a terminal would show at last of a line that may return to its start."""
    text = raw.decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1]
    return redact(without_controls(TERMINAL_CODES.sub("", text))[:_MOST_CHARACTERS].rstrip())
