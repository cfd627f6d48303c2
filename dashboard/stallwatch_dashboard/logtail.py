"""The end of a run's log copies, rank by rank, for the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path

from stallwatch_exporter.runs.cri import parse_record
from stallwatch_rules.lines.rankpaths import rank_of_path
from stallwatch_rules.text import ansi
from stallwatch_rules.text.controls import without_controls
from stallwatch_rules.text.redact import redact

_MOST_BYTES = 256 * 1024
_MOST_CHARACTERS = 2000  #: of one line


@dataclass(frozen=True)
class LogCopy:
    """One file of a run's folder."""

    path: Path
    rank: int | None  #: None: lines whose rank is not known


def copies(folder: Path) -> list[LogCopy]:
    """The log copies of a run: ranks in order, then the lines of unknown rank."""
    ranks = [LogCopy(path, rank_of_path(path.name)) for path in (folder / "ranks").glob("*.log")]
    found = sorted(ranks, key=lambda copy: (copy.rank is None, copy.rank or 0, copy.path.name))
    rest = folder / "output.log"
    return [*found, LogCopy(rest, None)] if rest.is_file() else found


def tail(path: Path, lines: int = 200, zone: tzinfo | None = None) -> str:
    """The last lines of one copy with the time of day before each; secrets are masked.

    Of a progress bar, which redraws one line, only the last picture is shown.
    """
    try:
        with path.open("rb") as copy:
            size = copy.seek(0, 2)
            copy.seek(max(0, size - _MOST_BYTES))
            raw = copy.read(_MOST_BYTES)
    except OSError:
        return ""
    whole = raw.split(b"\n") if size <= _MOST_BYTES else raw.split(b"\n")[1:]
    shown: list[str] = []
    begun = b""
    for line in whole:
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
    return redact(without_controls(ansi.IN_TEXT.sub("", text))[:_MOST_CHARACTERS].rstrip())
