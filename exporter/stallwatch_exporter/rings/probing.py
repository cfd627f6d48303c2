"""Read the probes' rings and side files, which ranks write to a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from stallwatch_exporter import steady
from stallwatch_exporter.probe.api import FOLDER_VARIABLE, SWITCH_VARIABLE
from stallwatch_exporter.probe.events import MOST_BYTES
from stallwatch_exporter.probe.layout import LayoutProblem
from stallwatch_exporter.rings.exits import Exits
from stallwatch_exporter.rings.presence import inspect_process, is_there, process_namespace
from stallwatch_exporter.rings.reader import Batch, Record, RingReader, open_file
from stallwatch_exporter.running.crashes import ProcessEnd
from stallwatch_exporter.settings import make_home
from stallwatch_rules.text.foreign_json import NOT_JSON, read_json, require_bounded
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

BOOTSTRAP = Path(__file__).parents[1] / "probe" / "bootstrap"
_MOST_RINGS = 4096
_MOST_RECORDS = 256  # Maximum number of records for each ring at a poll. Further records add no information.
_ORPHAN_SECONDS = 86400.0
# Age at which the folder of an agent in another container is removed. The limit is high because a write
# through a mapping does not always update the file's time.
_FOREIGN_SECONDS = 30 * 86400.0
_QUOTES = lazy(r"[\"\n\r\\]")


def make_folder(home: Path) -> Path:
    """Create a private folder for the rings of one run. Raises `OSError` if there is no space.

    If the state folder is not writable, the folder is created in the system's temporary folder.
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
    """Return a short tag for the process ID namespace of this process."""
    return hashlib.sha256(process_namespace().encode()).hexdigest()[:12]


def _remove_orphans(parent: Path) -> None:
    """Remove the folders of killed agents. Ranks that are still running keep their ring files open."""
    for old in parent.iterdir():
        pid, _, rest = old.name.partition("-")
        if not pid.isdigit():
            continue
        # The process ID of an agent in another container has no meaning in this container, so use only the
        # folder's age.
        is_local = rest.partition("-")[2] == _tag()
        if is_local and psutil.pid_exists(int(pid)):
            continue
        if _age(old) > (_ORPHAN_SECONDS if is_local else _FOREIGN_SECONDS):
            shutil.rmtree(old, ignore_errors=True)


def _age(folder: Path) -> float:
    """Return the number of seconds since a file in the folder was last written, or 0 if unknown."""
    try:
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return 0.0


def with_probe(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment in which every Python interpreter loads the probe."""
    if environ.get(SWITCH_VARIABLE) == "0":
        return dict(environ)
    # Omit an empty part, which Python would interpret as the working directory.
    path = os.pathsep.join(part for part in (str(BOOTSTRAP), environ.get("PYTHONPATH", "")) if part)
    return {
        **environ,
        **steady.environment(),
        "PYTHONPATH": path,
        FOLDER_VARIABLE: str(folder.absolute()),
    }


class RankProcess(RingReader):
    """A process that has a ring, and the agent's observations of the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.was_up = False  #: true if the process was running at an earlier read
        self.step: int | None = None  #: last step that the process reported
        self.stepped_at: float | None = None
        #: Command line at the process's first step.
        self.words: tuple[str, ...] = ()
        #: True if the process reported its end without an error, False if it reported its end with an
        #: error, and None if it did not report its end.
        self.left: bool | None = None
        self.is_worker = False  #: true if the process started while another process of its rank trained
        self._events_until = 0

    @property
    def is_up(self) -> bool:
        """Return whether the process is running."""
        return is_there(self.header.pid, steady.wall(self.header.started))

    def take(self) -> Batch:
        """Read the new records from the process."""
        batch, stepped = self.read(_MOST_RECORDS), self.step is not None
        for record in batch.records:
            if "step" in record.values:
                self.step, self.stepped_at = int(record.values["step"]), record.time
        if self.step is not None and not stepped:
            self.words = inspect_process(self.header.pid, lambda process: tuple(process.cmdline()), ())
        return batch

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the new text events from the process."""
        try:
            with os.fdopen(open_file(self.path.with_suffix(".jsonl")), "rb") as file:
                data = os.pread(file.fileno(), MOST_BYTES, self._events_until)
        except OSError:
            return
        if self._events_until > MOST_BYTES:  # a probe never writes this many bytes
            return
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == MOST_BYTES:  # skip a line that is too long to come from a probe
            whole = data
        self._events_until += len(whole)
        for line in whole.splitlines():
            try:
                event = require_bounded(read_json(line))
            except NOT_JSON:
                continue
            if isinstance(event, dict):
                if event.get("kind") == "left":
                    self.left = not event.get("error")
                yield event

    def end(self, exits: Exits) -> ProcessEnd:
        """Return how the process ended, or that it is still running."""
        return ProcessEnd(
            self.header.pid,
            self.header.rank if self.header.rank >= 0 and self.step is not None else None,
            self.is_up,
            exits.codes.get(self.path),
            exits.ended_at.get(self.path),
            self.was_up,
            self.left,
            self.step,
            self.stepped_at,
            started=self.header.started,
            words=self.words,
        )


class Probing:
    """Reader of the rings and side files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = 0  #: number of permanently lost records and events, plus errors inside the probes
        self._rings: dict[str, RankProcess | None] = {}  # None means that the file is not a ring
        self._lost_records = 0
        # IDs of the rings' processes that existed in this process's namespace at the last call. IDs from
        # other namespaces usually do not exist in this namespace.
        self._alive: set[int] = set()
        self._exits = Exits()

    def read(self) -> list[Record]:
        """Return the records that the ranks have written since the last call, ordered by time."""
        found: list[Record] = []
        for process in self._found():
            # Check whether the process runs before reading, because the records of an ended process are
            # complete.
            is_up = process.is_up
            if is_up:
                process.was_up = True
                self._exits.watch(process.path, process.header.pid, process.header.started)
            batch = process.take()
            self._lost_records += batch.lost
            found += batch.records
            if not is_up:  # do not keep a file open for each ended process
                process.close()
        self.lost = self._lost_records + sum(
            each.dropped_records + each.dropped_events + each.faults for each in self._known()
        )
        return sorted(found, key=lambda record: record.time)

    def just_left(self) -> bool:
        """Return whether all processes from the last call have ended, even if new processes have started."""
        before, self._alive = self._alive, {pid for pid in self.pids() if psutil.pid_exists(pid)}
        return bool(before) and not before & self._alive

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the text events written since the last call. Secrets in the events are masked.

        The end of a worker process is omitted because readers would mistake it for the end of the rank.
        """
        for process in self._found():
            for event in process.events():
                if event.get("kind") != "left" or self._ends_rank(process):
                    yield {"rank": process.header.rank, **without_secrets(event)}

    def ranks_up(self) -> dict[int, frozenset[Path]]:
        """For each rank that has a ring, return the rings of the rank's running processes."""
        return {
            rank: frozenset(each.path for each in processes if each.is_up)
            for rank, processes in self._by_rank().items()
        }

    def first_rank(self) -> int | None:
        """Return the global rank of local rank 0, or ``None`` if the running ranks do not agree on it."""
        up = [process.header for process in self._known() if process.is_up and process.header.rank >= 0]
        found = {each.rank - each.local_rank for each in up if each.local_rank >= 0}
        return found.pop() if len(found) == 1 and min(found) >= 0 else None

    def exit_codes(self) -> dict[int, int]:
        """Return the known exit code (``-n`` for signal n) of each ended rank's last process."""
        codes = {}
        for rank, processes in self._by_rank().items():
            if processes and not any(each.is_up for each in processes):
                last = max(processes, key=lambda each: each.header.started)
                if last.path in self._exits.codes:
                    codes[rank] = self._exits.codes[last.path]
        return codes

    def pids(self) -> set[int]:
        """Return the process IDs from all rings, including the IDs of ended processes."""
        return {process.header.pid for process in self._known()}

    def ends(self) -> list[ProcessEnd]:
        """For each process that has a ring, return how the process ended, or that it is still running."""
        return [process.end(self._exits) for process in self._known()]

    def close(self) -> None:
        """Remove the folder of the rings after the run has ended and all records have been read."""
        self._exits.close()
        for process in self._known():
            process.close()
        self._rings.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _known(self) -> list[RankProcess]:
        return [process for process in self._rings.values() if process is not None]

    def _found(self) -> list[RankProcess]:
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.name.endswith(".ring"))
        except OSError:
            names = []
        for name in names:
            if name not in self._rings and len(self._rings) < _MOST_RINGS:
                try:
                    self._rings[name] = RankProcess(self.folder / name)
                except LayoutProblem:
                    self._rings[name] = None
                except OSError:  # For example, the agent is out of file descriptors. Try again later.
                    continue
        return self._known()

    def _by_rank(self) -> dict[int, list[RankProcess]]:
        ranks = dict.fromkeys(process.header.rank for process in self._known())
        return {rank: self._of_rank(rank) for rank in ranks if rank >= 0}

    def _ends_rank(self, process: RankProcess) -> bool:
        """Return whether the end of this process is the end of its rank."""
        processes = self._of_rank(process.header.rank)
        if process not in processes:
            return False
        if any(each.latest_step_at() is not None for each in processes):
            return True
        # Before the first step, the earliest process that is still running counts as the rank.
        return not any(each.header.started < process.header.started and each.is_up for each in processes)

    def _of_rank(self, rank: int) -> list[RankProcess]:
        """Return the processes of a rank, excluding the rank's worker processes.

        Workers are processes that have no steps and that started while another process of the rank was
        training.
        """
        processes = [process for process in self._known() if process.header.rank == rank]
        if len(processes) == 1:
            return processes
        stepping = {each: at for each in processes if (at := each.latest_step_at()) is not None}
        if not stepping:
            return processes
        lead, stepped_at = max(stepping.items(), key=lambda item: item[1])
        later = [each for each in processes if each not in stepping and each.header.started > stepped_at]
        trains = bool(later) and lead.is_up
        for process in later:
            # A worker remains a worker after the rank has ended.
            process.is_worker = process.is_worker or trains
        # A launcher that restarts its ranks starts new processes, which have new rings.
        return [*stepping, *(process for process in later if not process.is_worker)]


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a copy of the value in which the secrets in strings are masked. `name` is the key of the value.

    Each string is masked separately because masking a whole JSON document can remove a closing quote.
    """
    if isinstance(value, str):
        masked = redact(value)
        # The name alone can show that a value is a secret, such as a password.
        given = f'"{name}": "{_QUOTES.sub("", masked)}"'
        return "***" if name and redact(given) == f'"{name}": "***"' else masked
    if isinstance(value, list):
        return [without_secrets(each, name) for each in value]
    if isinstance(value, dict):
        return {redact(key): without_secrets(item, key) for key, item in value.items()}
    return value
