"""The agent's end of the probe: the folder that ranks write into, and what is read from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from stallwatch_exporter import steady
from stallwatch_exporter.probe.api import FOLDER_VARIABLE, SWITCH_VARIABLE
from stallwatch_exporter.probe.layout import Header, LayoutProblem
from stallwatch_exporter.rings.exits import Exits
from stallwatch_exporter.rings.presence import command_line, is_there, process_namespace
from stallwatch_exporter.rings.reader import Record, RingReader
from stallwatch_exporter.running.crashes import ProcessEnd
from stallwatch_exporter.settings import make_home
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

BOOTSTRAP = Path(__file__).parents[1] / "probe" / "bootstrap"
_MOST_RINGS = 4096
_MOST_RECORDS = 256  # of one ring in one look: more say nothing that these do not
_ORPHAN_SECONDS = 86400.0
_FOREIGN_SECONDS = 30 * 86400.0  # memory that is written through a mapping may leave the file its time
_QUOTES = lazy(r"[\"\n\r\\]")


def make_folder(home: Path) -> Path:
    """A new folder for the rings of one run, readable by its user only; an `OSError` where there is no room.

    A state folder that cannot be written is no reason to see less of the run.
    """
    try:
        parent = home / "rings"
        make_home(home)
        parent.mkdir(exist_ok=True)
        _remove_orphans(parent)
        folder = parent / f"{os.getpid()}-{time.time_ns()}-{_tag()}"
        folder.mkdir(mode=0o700)
        return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="stallwatch-rings-"))


def _tag() -> str:
    """Short for the namespace of our process numbers."""
    return hashlib.sha256(process_namespace().encode()).hexdigest()[:12]


def _remove_orphans(parent: Path) -> None:
    """Folders that a killed agent left: ranks that outlived it keep their rings, which have names no more.

    Where the agent's number is none of ours, as its container was another, only age tells that it is gone.
    """
    for old in parent.iterdir():
        pid, _, rest = old.name.partition("-")
        ours = rest.partition("-")[2] == _tag()
        gone = not psutil.pid_exists(int(pid)) if ours and pid.isdigit() else pid.isdigit()
        if gone and _age(old) > (_ORPHAN_SECONDS if ours else _FOREIGN_SECONDS):
            shutil.rmtree(old, ignore_errors=True)


def _age(folder: Path) -> float:
    """Seconds since anything in it was written; 0 where that is not known."""
    try:
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0


def with_probe(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment in which every Python loads the probe."""
    if environ.get(SWITCH_VARIABLE) == "0":
        return dict(environ)
    # No empty part: to Python that is the working directory.
    path = os.pathsep.join(part for part in (str(BOOTSTRAP), environ.get("PYTHONPATH", "")) if part)
    return {
        **environ,
        **steady.environment(),
        "PYTHONPATH": path,
        FOLDER_VARIABLE: str(folder.absolute()),
    }


class Probing:
    """Reads the rings and side files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = 0  #: records and events that nobody will read, and what failed inside the probes
        self._rings: dict[str, RingReader | None] = {}  # None: no ring after all
        self._lost_records = 0
        self._alive: set[int] = set()  # processes; those of another namespace of numbers are never seen
        self._offsets: dict[str, int] = {}
        self._ranks = RankRings()
        self._exits = Exits()
        self._steps: dict[Path, tuple[int, float]] = {}  # the last step of each ring, and when it was told
        self._words: dict[Path, tuple[str, ...]] = {}  # of its process, as it made its first step
        self._was_up: set[Path] = set()  # rings whose process was seen: none of another namespace of numbers
        self._left: dict[Path, bool] = {}  # whether its process ended without an error, where it said so

    def read(self) -> list[Record]:
        """What all ranks told since the last look, in the order of time."""
        found: list[Record] = []
        for reader in self._readers():
            # Asked first: of whoever is gone by now, the last words are there to read.
            over = not is_there(reader.header.pid, steady.wall(reader.header.started))
            if not over:
                self._was_up.add(reader.path)
                self._exits.watch(reader.path, reader.header.pid, reader.header.started)
            batch = reader.read(_MOST_RECORDS)
            self._lost_records += batch.lost
            found += batch.records
            for record in batch.records:
                if "step" in record.values:
                    self._steps[reader.path] = int(record.values["step"]), record.time
            if reader.path in self._steps and reader.path not in self._words:
                self._words[reader.path] = command_line(reader.header.pid)
            if over:  # an open file for each rank that ever was would be too many
                reader.close()
        self.lost = self._lost_records + sum(
            each.dropped_records + each.dropped_events + each.faults for each in self._known()
        )
        return sorted(found, key=lambda record: record.time)

    def just_left(self) -> bool:
        """Whether all ranks of the last look have ended since; others may have come at once."""
        pids = {reader.header.pid for reader in self._known()}
        before, self._alive = self._alive, {pid for pid in pids if psutil.pid_exists(pid)}
        return bool(before) and not before & self._alive

    def events(self) -> Iterator[dict[str, Any]]:
        """The text events since the last look, without secrets.

        That a worker of a rank ends is left out: to others it would read as the end of the rank.
        """
        for reader in self._readers():
            name, path = reader.path.name, reader.path.with_suffix(".jsonl")
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets.get(name, 0))
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[name] = self._offsets.get(name, 0) + len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line.decode("utf-8", "replace"))
                except ValueError:
                    continue
                left = isinstance(event, dict) and event.get("kind") == "left"
                if left:
                    self._left[reader.path] = not event.get("error")
                if left and not self._ranks.leaves(reader, self._known()):
                    continue
                if isinstance(event, dict):
                    yield {"rank": reader.header.rank, **without_secrets(event)}

    def ranks_up(self) -> dict[int, frozenset[Path]]:
        """For each rank that has told anything the rings whose process is up: none when it is gone."""
        return self._ranks.up(self._known())

    def exit_codes(self) -> dict[int, int]:
        """By rank that is gone the exit code of its last process, ``-n`` for signal n, where it was seen."""
        last = self._ranks.gone(self._known())
        return {rank: self._exits.codes[path] for rank, path in last.items() if path in self._exits.codes}

    def pids(self) -> set[int]:
        """The processes of all rings, whether they are up or not."""
        return {reader.header.pid for reader in self._known()}

    def ends(self) -> list[ProcessEnd]:
        """How each process ended that has a ring."""
        found = []
        for reader in self._known():
            path, header = reader.path, reader.header
            step, at = self._steps.get(path, (None, None))
            found.append(
                ProcessEnd(
                    header.pid,
                    header.rank if header.rank >= 0 and step is not None else None,
                    is_there(header.pid, steady.wall(header.started)),
                    self._exits.codes.get(path),
                    self._exits.ended_at.get(path),
                    path in self._was_up,
                    self._left.get(path),
                    step,
                    at,
                    started=header.started,
                    words=self._words.get(path, ()),
                )
            )
        return found

    def close(self) -> None:
        """The run is over: the folder goes. What is worth keeping was read."""
        self._exits.close()
        for reader in self._known():
            reader.close()
        self._rings.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _known(self) -> list[RingReader]:
        return [reader for reader in self._rings.values() if reader is not None]

    def _readers(self) -> list[RingReader]:
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".ring"))
        except OSError:
            names = []
        for name in names:
            if name not in self._rings and len(self._rings) < _MOST_RINGS:
                try:
                    self._rings[name] = RingReader(self.folder / name)
                except LayoutProblem:
                    self._rings[name] = None
                except OSError:  # such as no descriptor that is free: there may be one at the next look
                    continue
        return self._known()


def without_secrets(told: Any, name: str = "") -> Any:
    """The same with the secrets in its texts masked; `name` is the key that the value stands under.

    Text by text: a mask in the middle of JSON may take the quote that ends a text.
    """
    if isinstance(told, str):
        masked = redact(told)
        # A value may be a secret by its name alone, such as a password's.
        given = f'"{name}": "{_QUOTES.sub("", masked)}"'
        return "***" if name and redact(given) == f'"{name}": "***"' else masked
    if isinstance(told, list):
        return [without_secrets(each, name) for each in told]
    if isinstance(told, dict):
        return {redact(key): without_secrets(value, key) for key, value in told.items()}
    return told


class _Seen(msgspec.Struct, frozen=True):
    path: Path
    header: Header
    stepped: bool
    last: float  # Unix seconds, of its last record

    @property
    def is_up(self) -> bool:
        return is_there(self.header.pid, steady.wall(self.header.started))


class RankRings:
    """Hand it all rings that are known. What was seen beside a rank stays that when the rank is gone."""

    def __init__(self) -> None:
        self._beside: set[Path] = set()

    def up(self, readers: Iterable[RingReader]) -> dict[int, frozenset[Path]]:
        """For each rank the rings whose process is up: none when it is gone. Unknown ranks are left out."""
        return {
            rank: frozenset(one.path for one in self._own(rings) if one.is_up)
            for rank, rings in _by_rank(readers).items()
        }

    def gone(self, readers: Iterable[RingReader]) -> dict[int, Path]:
        """For each rank of which no process is up the ring of its newest one."""
        own = {rank: self._own(rings) for rank, rings in _by_rank(readers).items()}
        return {
            rank: max(seen, key=lambda one: one.header.started).path
            for rank, seen in own.items()
            if seen and not any(one.is_up for one in seen)
        }

    def leaves(self, one: RingReader, readers: Iterable[RingReader]) -> bool:
        """Whether the end of this ring's process is the end of its rank."""
        rings = [each for each in readers if each.header.rank == one.header.rank]
        own = self._own(rings)
        if one.path not in {each.path for each in own}:
            return False
        if any(each.stepped for each in own):
            return True
        # Before any step: whoever was there first, and still is, is the rank.
        return not any(each.header.started < one.header.started and each.is_up for each in own)

    def _own(self, readers: list[RingReader]) -> list[_Seen]:
        """Those of the rank: processes that step; all of them as long as none does."""
        if len(readers) == 1:
            return [_Seen(readers[0].path, readers[0].header, False, 0.0)]  # whatever it did
        seen = [_seen(reader) for reader in readers]
        stepping = [one for one in seen if one.stepped]
        if not stepping:
            return seen
        lead = max(stepping, key=lambda one: one.last)
        later = [one for one in seen if not one.stepped and one.header.started > lead.last]
        if later and lead.is_up:
            self._beside.update(one.path for one in later)
        # A launcher that restarts its ranks gives each a new process, and so a new ring.
        return [*stepping, *(one for one in later if one.path not in self._beside)]


def _by_rank(readers: Iterable[RingReader]) -> dict[int, list[RingReader]]:
    """Without those whose rank is not known."""
    found: dict[int, list[RingReader]] = {}
    for reader in readers:
        if reader.header.rank >= 0:
            found.setdefault(reader.header.rank, []).append(reader)
    return found


def _seen(reader: RingReader) -> _Seen:
    latest = reader.latest()
    stepped = latest is not None and "step" in latest.values
    return _Seen(reader.path, reader.header, stepped, latest.time if latest is not None else 0.0)
