"""Manage the folder of a run, ``<home>/runs/<run>/``, whose file ``agent.json`` describes the agent."""

from __future__ import annotations

import math
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from stallwatch_exporter.cluster.identity import RunIdentity
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.presence import is_there, process_namespace
from stallwatch_exporter.runs.copies import Gap
from stallwatch_exporter.runs.naming import (
    folder_names,
    label_of,
    redacted_command,
    run_name,
    sanitise,
    script_name,
)
from stallwatch_exporter.runs.reserve import NAME, SIZE, Reserve, append_whole
from stallwatch_exporter.settings import is_own_folder, make_home, temporary_home, why_not_own
from stallwatch_rules.decoding import from_json
from stallwatch_rules.endings import Ending
from stallwatch_rules.files import is_own, open_regular, replace
from stallwatch_rules.messages import Message, message
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.foreign_json import NOT_JSON

_Record = TypeVar("_Record")
_Folder = TypeVar("_Folder", str, Path)
#: File of an agent in a run across several hosts. It contains the run's incidents that this agent reported to
#: users, either merged with the incidents of other hosts or on its own.
RUN_INCIDENTS = "run-incidents.jsonl"
State = Literal["starting", "training", "stalled", "finished", "failed"]
#: Seconds without a new record after which an agent on another host counts as lost. Agents write a record
#: every few seconds, but NFS can cache a file for a minute (acregmax, nfs(5)), and clocks can differ.
SILENT_SECONDS = 300.0
#: The limit for an agent on this host, which has the same clock and NFS cache, but whose disk can block.
SILENT_HERE_SECONDS = 15.0
_AHEAD_SECONDS = 86400.0  # maximum number of seconds by which another host's clock can be ahead
_LOOK_SECONDS = 0.5
_UNSENT_SECONDS = 600.0  # maximum wait of a notification, in seconds, for an explanation or a lock
_AWAITED_SECONDS = 86400.0
_WRITE_SECONDS = 1.0  # maximum number of seconds to wait for a write, which is usually immediate
_MOST_RUN_INCIDENTS = 1000
_MOST_WAITING = 1024 * 1024  # maximum number of bytes of lines that have not been written yet


class AgentInfo(msgspec.Struct, kw_only=True):
    """Content of ``agent.json``: a run's state as its agent sees it. Times are Unix timestamps in seconds."""

    run: str  #: label of the run
    pid: int
    host: str
    command: list[str]
    cwd: str
    started_at: float
    updated_at: float
    ended_at: float | None = None
    endpoint: str | None = None  #: local address of the metrics, such as "http://127.0.0.1:19400/metrics"
    everywhere: bool = False  #: True if the endpoint listens on all addresses of the host
    state: State = "starting"
    ending: Ending | None = None
    threshold: float | None = None  #: seconds without progress after which the last phase is stalled
    quiet_since: float | None = None  #: time of the last sign of progress
    step: int | None = None  #: last step seen
    total_steps: int | None = None
    loss: float | None = None
    namespace: str = ""  #: namespace of `pid`: see ``presence.process_namespace``
    #: Whether all incidents were sent to the destinations. The value is false until the agent has ended.
    reported: bool = True
    rank_logs: list[str] = []  #: log copies written so far, relative to the run's folder
    gaps: list[Gap] = []  #: records that are missing from the log copies
    partial: str = ""  #: reason why another part of the record is missing, or empty if all parts exist
    job: str = ""  #: job name from the scheduler or launcher, if the run can have several agents
    attempt: int = 0  #: number of the job's attempt
    key: str = ""  #: key that all agents of one run share (see ``cluster.identity``)
    host_name: str = ""  #: different name of the host in the run, if another host is also named `host`
    agent: str = ""  #: ID of the agent in the run, made of host ID, process ID, and start time
    node: int | None = None  #: index of this host in the run
    agents: int | None = None  #: number of the run's agents, or ``None`` if no scheduler provides it
    ranks: str = ""  #: ranges of the ranks on this host, such as ``8-15``
    first_rank: int | None = None  #: global rank of the process with local rank 0, if known
    folder: str = ""  #: name of this record's folder

    @property
    def end_is_unknown(self) -> bool:
        """Return whether the run has no recorded end: the agent still runs, was killed, or ended early."""
        return self.ended_at is None or (self.ending is not None and self.ending.kind == "unknown")

    @property
    def host_in_run(self) -> str:
        """Name of this host in incidents and on pages of the run."""
        return self.host_name or self.host


class ReservedContent(msgspec.Struct):
    """Content of the reserved block, which is used if another file in the folder could not be written."""

    info: AgentInfo
    diagnosis: Diagnosis | None = None


def runs_home(home: Path) -> Path:
    """Return the folder that contains the folders of all runs."""
    return home / "runs"


class RunFolder:
    """Folder of a run's agent: in the state folder, in ``$TMPDIR``, or only in memory.

    A failed write does not end a run. Data that cannot be written waits in memory, up to a limit. For the
    run's ending, a block on the disk is reserved (`Reserve`).
    """

    def __init__(self, run: str, path: Path, info: AgentInfo) -> None:
        self.run = run
        self.path = path
        self.info = info
        self.problem: str | None = None  #: reason why nothing is stored, or None
        self.moved = ""  #: reason why the record is not in the state folder, or empty if it is there
        self.failed_writes = 0
        self.reported_until = math.inf  #: time up to which changes from earlier agents count as reported
        self._home = path.parent.parent
        self._reserve: Reserve | None = None
        self._diagnosis: Diagnosis | None = None  # diagnosis of the ended run, until all files are written
        self._waiting: deque[tuple[str, bytes]] = deque()  # lines to write, with their filenames
        self._waiting_bytes = 0
        self._run_incidents: deque[bytes] = deque(maxlen=_MOST_RUN_INCIDENTS)
        self._writer: threading.Thread | None = None
        self._writing = threading.Lock()
        self._lacks = False  # whether data was lost that no later write can restore

    @classmethod
    def create(
        cls,
        name: str | None,
        command: Sequence[str],
        *,
        home: Path,
        now: float | None = None,
        reuse: bool = False,
        identity: RunIdentity | None = None,
    ) -> RunFolder:
        """Create the folder of a run.

        Unless `reuse` is true, a name that is in use gets a suffix such as ``-2``.

        If `identity` is given, all agents of the run share its label, and only their folders differ.
        """
        now = time.time() if now is None else now
        if identity is not None:
            base = identity.run_label(name or script_name(command))
        else:
            base = sanitise(name) if name else run_name(command, now)
        info = AgentInfo(
            run=base,
            pid=os.getpid(),
            host=socket.gethostname(),
            command=redacted_command(command),
            cwd=_cwd(),
            started_at=now,
            updated_at=now,
            namespace=process_namespace(),
        )
        if identity is not None:
            info.job, info.attempt = identity.job, identity.attempt
            info.key, info.node, info.agents = identity.key, identity.node, identity.agents
        folder = cls(base, runs_home(home) / base, info)
        if why := folder._placed(home, reuse=reuse):
            folder._move(why)
        return folder

    def _placed(self, home: Path, *, reuse: bool = False) -> str:
        """Create the run's folder and its reserve in `home`. Return the reason for a failure, or ""."""
        parent, made, reserve = runs_home(home), None, None
        try:
            make_home(home)
            parent.mkdir(exist_ok=True)
            names = folder_names(self.run, self.info.host if self.info.key else None)
            path, is_new = _claim(parent, names, reuse, self._is_anothers)
            made = path if is_new else None
            if (before := read_info(path)) is not None:
                self.reported_until = reported_until(before, self.info.started_at)
            self.path, self.info.folder = path, path.name
            if not self.info.key:
                self.run = self.info.run = path.name
            # Write this file first because a killed run needs a record.
            _write_record(path / "agent.json", self.info)
            (path / "ranks").mkdir(exist_ok=True)
            reserve = Reserve(path / NAME)
        except OSError as error:
            if reserve is not None:
                reserve.remove()
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            return f"{error.strerror}: {error.filename or self.path}"
        self._reserve, self.problem = reserve, None
        return ""

    def _is_anothers(self, name: str) -> bool:
        """Return whether a state folder, which might be full, contains another run with this name."""
        known = runs_home(self._home) / name
        info = read_info(known)
        return _identity(info) != _identity(self.info) if info is not None else known.exists()

    def _move(self, why: str) -> None:
        """Store the rest of the run's record in ``$TMPDIR`` or, if that also fails, only in memory."""
        home = temporary_home(self._home)
        self._reserve, self.moved = None, why
        with suppress(OSError):
            make_home(home)
        other = why_not_own(home) or self._placed(home)
        self.problem = f"{why}; {other}" if other else None

    def write_info(self, **changes: Any) -> None:
        """Apply `changes` and write ``agent.json``. At the end of the run, also write its diagnosis.

        If a file cannot be written, the reserve stores the record until the files contain the whole record.
        """
        for key, value in changes.items():
            setattr(self.info, key, value)
        self._write_waiting()
        ended = self._diagnosis is not None
        whole = not ended or self.write_json("diagnosis.json", self._diagnosis)
        if ended and whole and not self._waiting and not self._lacks:
            self.info.partial = ""
        whole = self.write_json("agent.json", self.info) and whole
        if self._reserve is not None and not whole:
            self._reserve.write(_smallest(self.info, self._diagnosis))
        elif self._reserve is not None and not ended:
            self._reserve.blank()
        elif self._reserve is not None:
            self._reserve.remove()
            self._reserve = None
        if whole:
            self._diagnosis = None

    def write_json(self, name: str, record: Any) -> bool:
        """Atomically write one record to a JSON file in this folder. Return whether that succeeded."""
        if self.problem is not None:
            return False
        try:
            _write_record(self.path / name, record)
        except OSError as error:
            self.failed_writes += 1
            self.info.partial = error.strerror or str(error)
            return False
        return True

    def keep_end(self, diagnosis: Diagnosis, **changes: Any) -> None:
        """Store the ending of the run before all other data, in the run's folder or in a replacement."""
        self._diagnosis = diagnosis
        for key, value in changes.items():
            setattr(self.info, key, value)
        if self._reserve is not None and self._reserve.write(_smallest(self.info, diagnosis)):
            return
        # If the whole state folder is missing, its file system is not mounted. Do not create the folder below
        # the mount point.
        is_gone = self.problem is None and not self._home.is_dir()
        self._lacks, self.info.partial = True, "it was gone or read-only at the end"
        if why := f"no such folder: {self._home}" if is_gone else self._placed(self._home):
            self._move(why)
        if self._reserve is not None:
            self._reserve.write(_smallest(self.info, diagnosis))

    def close(self, diagnosis: Diagnosis, **changes: Any) -> None:
        """Write the complete record of an ended run. If all files could be written, free the reserve."""
        self._diagnosis = diagnosis
        self.write_info(**changes)

    def kept_elsewhere(self) -> Message | str:
        """Return a message about where the run's record is stored, or "" if it is in the state folder."""
        if self.problem is not None:
            return message("run.kept-nowhere", why=self.problem)
        return message("run.kept-elsewhere", path=str(self.path), why=self.moved) if self.moved else ""

    def append_incident(self, incident: Incident) -> None:
        """Append a changed incident to ``incidents.jsonl``."""
        self._append("incidents.jsonl", incident)

    def append_run_incident(self, incident: Incident) -> None:
        """Append a changed incident, which this agent reported to users, to ``run-incidents.jsonl``.

        The call waits only briefly, so that an unresponsive disk does not delay the reports of other hosts.
        """
        with self._writing:
            is_stuck = self._writer is not None and self._writer.is_alive()
            self._run_incidents.append(msgspec.json.encode(incident) + b"\n")
            if not is_stuck:
                self._writer = threading.Thread(target=self._write_run_incidents, daemon=True)
                self._writer.start()
                self._writer.join(_WRITE_SECONDS)

    def _write_run_incidents(self) -> None:
        while self._run_incidents:
            with suppress(OSError):  # the next agent that merges incidents also has this incident
                append_whole(self.path / RUN_INCIDENTS, self._run_incidents.popleft())

    def append_event(self, event: dict[str, Any]) -> None:
        """Append an event from a rank's probe to ``events.jsonl``."""
        self._append("events.jsonl", event)

    def _append(self, name: str, record: Any) -> None:
        line = msgspec.json.encode(record) + b"\n"
        self._waiting.append((name, line))
        self._waiting_bytes += len(line)
        self._write_waiting()
        while self._waiting_bytes > _MOST_WAITING:
            self._waiting_bytes -= len(self._waiting.popleft()[1])
            self.failed_writes += 1
            self._lacks = True

    def _write_waiting(self) -> None:
        """Append the waiting lines, in order, until a write fails."""
        while self._waiting and self.problem is None:
            name, line = self._waiting[0]
            try:
                append_whole(self.path / name, line)
            except OSError as error:
                self.info.partial = error.strerror or str(error)
                return
            self._waiting.popleft()
            self._waiting_bytes -= len(line)


def list_runs(home: Path) -> list[AgentInfo]:
    """Return the readable records of all agents, newest first.

    In a shared state folder, records and links of other accounts can point outside the folder. Therefore,
    `AgentInfo.folder` is set to the name of the folder that was read.
    """
    try:
        folders = [
            entry
            for entry in runs_home(home).iterdir()
            if not entry.name.startswith(".")
            and not (entry.is_symlink() and not is_own(entry.lstat(), or_root=True))
        ]
    except OSError:
        return []
    infos = [
        msgspec.structs.replace(info, run=label_of(folder.name, info.run), folder=folder.name)
        for folder in folders
        if (info := read_info(folder)) is not None
    ]
    return sorted(infos, key=lambda info: (info.started_at, info.folder), reverse=True)


def _identity(info: AgentInfo) -> tuple[object, ...]:
    """Return the values that identify an agent, even if its record is in several folders."""
    return info.host, info.namespace, info.pid, info.started_at


def kept_runs(home: Path) -> list[tuple[Path, AgentInfo]]:
    """Return each agent's folder and newest record, newest agent first, including agents in ``$TMPDIR``."""
    found: dict[tuple[object, ...], tuple[Path, AgentInfo]] = {}
    for place in (home, temporary_home(home)):
        for info in list_runs(place) if place is home or is_own_folder(place) else ():
            before = found.get(_identity(info))
            if before is None or before[1].updated_at <= info.updated_at:
                found[_identity(info)] = runs_home(place) / info.folder, info
    return sorted(found.values(), key=lambda run: (run[1].started_at, run[1].folder), reverse=True)


def folders_of(home: Path, run: str) -> list[tuple[Path, AgentInfo]]:
    """Return the folder and the record of each agent of a run, ordered by folder name."""
    found = []
    with suppress(OSError):
        for folder in sorted(runs_home(home).iterdir()):
            if folder.name == run or folder.name.startswith(f"{run}+"):
                info = read_info(folder)
                if info is not None and label_of(folder.name, info.run) == run:
                    found.append((folder, info))
    return found


def by_run(kept: Sequence[tuple[Path, AgentInfo]]) -> list[list[tuple[Path, AgentInfo]]]:
    """Group the agents' folders by run, in the order of each run's first folder. `kept` is newest first."""
    jobs: dict[str, list[tuple[Path, AgentInfo]]] = {}
    for folder, info in kept:
        jobs.setdefault(info.key or str(folder), []).append((folder, info))
    groups = [start for agents in jobs.values() for start in by_start(agents)]
    place = {folder: number for number, (folder, _) in enumerate(kept)}
    ordered = (sorted(group, key=lambda each: place[each[0]]) for group in groups)
    return sorted(ordered, key=lambda group: place[group[0][0]])


def by_start(
    agents: Iterable[tuple[_Folder, AgentInfo]], within: float = math.inf
) -> list[list[tuple[_Folder, AgentInfo]]]:
    """Group the agents of a job by start of the job, oldest first.

    The agents of one start run at the same time. An agent belongs to the next start if it began after the
    previous agent of its host had ended. If its host had no previous agent, all other agents must have
    ended. An agent also belongs to the next start if it began more than `within` seconds after the previous
    agent. A job contains several starts only if the user's name or the launcher's address alone identifies
    the job.
    """
    groups: list[list[tuple[_Folder, AgentInfo]]] = []
    began = -math.inf
    ended: dict[str, float] = {}  # end time of the last agent on each host
    for folder, info in sorted(agents, key=lambda each: each[1].started_at):
        is_up = info.started_at <= ended.get(info.host_in_run, max(ended.values(), default=-math.inf))
        if is_up and info.started_at - began <= within:
            groups[-1].append((folder, info))
        else:
            groups.append([(folder, info)])
            ended = {}
        began = info.started_at
        until = info.ended_at if info.ended_at is not None else info.updated_at
        ended[info.host_in_run] = max(ended.get(info.host_in_run, until), until)
    return groups


def latest_folder(folder: Path) -> Path:
    """Return the folder in ``$TMPDIR`` if this run's record continues there, or `folder` otherwise."""
    info = read_info(folder)
    if info is None or info.ended_at is not None:
        return folder
    place = temporary_home(folder.absolute().parent.parent)
    for other in list_runs(place) if is_own_folder(place) else ():
        if _identity(other) == _identity(info):
            return runs_home(place) / other.folder
    return folder


def where_kept(folder: Path) -> Path:
    """Return the folder, or its replacement in ``$TMPDIR`` if the run did not fit into the state folder."""
    place = temporary_home(folder.absolute().parent.parent)
    other = runs_home(place) / folder.name
    return other if not folder.exists() and is_own_folder(place) and other.is_dir() else folder


def read_info(folder: Path) -> AgentInfo | None:
    """Return the newest record in the folder of a run, or ``None`` if no record is readable."""
    info, kept = read_record(folder / "agent.json", AgentInfo), read_record(folder / NAME, ReservedContent)
    if kept is not None and (info is None or kept.info.updated_at >= info.updated_at):
        return kept.info
    return info


def read_diagnosis(folder: Path) -> Diagnosis | None:
    """Return the diagnosis that was stored when the run ended, which might be reduced to fit the reserve."""
    whole = read_record(folder / "diagnosis.json", Diagnosis)
    kept = read_record(folder / NAME, ReservedContent) if whole is None else None
    return kept.diagnosis if kept is not None else whole


def read_record(path: Path, kind: type[_Record]) -> _Record | None:
    """Return the content of a JSON file in a run's folder, or ``None`` if it is not readable."""
    try:
        with open_regular(path) as file:
            return from_json(file.read(), kind)
    except (OSError, *NOT_JSON):
        return None


def mark_reported(folder: Path, known: AgentInfo) -> None:
    """Record in the folder of a lost agent that its incidents were passed to the destinations.

    Do nothing if the agent has written a newer record than `known`, or if another agent uses the folder.
    """
    info = read_info(folder)
    if info is None or (_identity(info), info.updated_at) != (_identity(known), known.updated_at):
        return
    # Increase the time by the smallest amount. Then this record is newer than the reserve, which stays
    # unchanged because it might contain data that fits into no file.
    info.reported, info.updated_at = True, math.nextafter(info.updated_at, math.inf)
    with suppress(OSError):  # the next agent resends incidents that are not recorded as sent
        _write_record(folder / "agent.json", info)


def _write_record(path: Path, record: Any) -> None:
    replace(path, msgspec.json.format(msgspec.json.encode(record), indent=2), mode=None)


def agent_alive(info: AgentInfo, now: float | None = None) -> bool:
    """Return whether the agent is still running.

    If the agent's process ID belongs to this namespace, the function checks the process. A process ID from
    another host, container, or boot can belong to any process on this host. In this case, the agent counts
    as lost after `SILENT_SECONDS` without a new record, or after `SILENT_HERE_SECONDS` if its host has the
    name of this host.
    """
    if info.ended_at is not None:
        return False
    # Do not use only the start time, because the clock might have been changed since then.
    up = max(info.started_at, info.updated_at)
    here = info.host == socket.gethostname()
    if here and info.namespace == process_namespace():
        return is_there(info.pid, up)
    now = time.time() if now is None else now
    if -_AHEAD_SECONDS <= now - info.updated_at <= (SILENT_HERE_SECONDS if here else SILENT_SECONDS):
        return True
    # A record from an earlier version has no namespace. For such a record, a matching process on this host is
    # sufficient evidence.
    return here and not info.namespace and is_there(info.pid, up)


def reported_until(info: AgentInfo, now: float) -> float:
    """Return the time up to which a lost agent's incident changes count as reported (infinity means all).

    If the last record of a killed agent is less than a day old, notifications that it might not have sent and
    the incidents that it left open are sent again, even if they changed earlier (see `Episodes`).
    """
    is_due = not info.reported and now - info.updated_at < _AWAITED_SECONDS
    return info.updated_at - _UNSENT_SECONDS if is_due else math.inf


def has_left(folder: Path, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Return whether no agent watches this run, so that its folder can be reused.

    If this container or host might have been restarted, the previous agent might have been silent for only a
    short time. In this case, wait for at most `SILENT_HERE_SECONDS` to see whether the agent writes again.
    """
    known = fresh = read_info(folder)
    waited = 0.0
    while fresh is not None and agent_alive(fresh):
        restarted = fresh.host == socket.gethostname() and fresh.namespace not in ("", process_namespace())
        if not restarted or known is None or fresh.updated_at != known.updated_at:
            return False
        if waited > SILENT_HERE_SECONDS:  # the clock of the agent that wrote the record was ahead
            return True
        sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        fresh = read_info(folder)
    return True


def _smallest(info: AgentInfo, diagnosis: Diagnosis | None) -> bytes:
    """Return the encoded record, reduced so that it fits into the reserved block."""
    data = b""
    for small in _smaller(ReservedContent(info, diagnosis)):
        data = msgspec.json.encode(small)
        if len(data) <= SIZE:
            return data
    return data[:SIZE]  # never reached, because the last version has a limited size


def _smaller(kept: ReservedContent) -> Iterator[ReservedContent]:
    yield kept
    replace, short = msgspec.structs.replace, kept.diagnosis
    if short is not None:
        short = replace(short, series=[], explained=[], new_lines=[], starts=[], notes=[], environment={})
        yield replace(kept, diagnosis=short)
        short = replace(short, findings=[], digest=[], unknown=short.unknown[:1])
        yield replace(kept, diagnosis=short)
    ending = kept.info.ending
    if ending is not None:
        ending = replace(ending, left=[], codes={}, running=[], memory=None)
    info = replace(kept.info, command=[word[:100] for word in kept.info.command[:20]], cwd="", rank_logs=[])
    info = replace(info, ending=ending, gaps=info.gaps[:1])
    yield replace(kept, info=info, diagnosis=short)
    if short is not None and short.primary is not None:
        primary = replace(
            short.primary, evidence=short.primary.evidence[-1:], captures={}, frames=[], apart=[]
        )
        yield ReservedContent(info, Diagnosis(short.verdict, primary=primary))
    yield ReservedContent(info, Diagnosis(short.verdict) if short is not None else None)
    yield ReservedContent(
        replace(info, ending=replace(ending, detail="", crash=None) if ending is not None else None)
    )


def _claim(
    parent: Path, names: Iterator[str], reuse: bool, is_taken: Callable[[str], bool]
) -> tuple[Path, bool]:
    """Create or reuse the folder with the first free name. Return its path and whether it is new."""
    path = parent
    for name in names:
        path = parent / name
        if not reuse and is_taken(path.name):
            continue
        try:
            path.mkdir()
        except FileExistsError:
            if reuse and path.is_dir():
                return path, False
        else:
            return path, True
    raise FileExistsError(17, "too many runs have this name", str(path))


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
