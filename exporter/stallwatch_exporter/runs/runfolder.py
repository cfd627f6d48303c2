"""A run's traces: ``<home>/runs/<run>/`` and the ``agent.json`` in it, by which others find the agent."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.rings.presence import is_there, process_namespace
from stallwatch_exporter.settings import make_home
from stallwatch_rules.endings import Ending
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

_Record = TypeVar("_Record")
State = Literal["starting", "training", "stalled", "finished", "failed"]
_LAUNCHERS = lazy(r"(python[\d.]*|uv|bash|sh|env|nohup|time|timeout|srun|torchrun|deepspeed|accelerate)")
_ASSIGNMENT = lazy(r"(?s)(-{0,2}[\w.-]+=)(.+)")
#: Agents write ``agent.json`` every few seconds. What NFS keeps of a file may be a minute old (acregmax,
#: nfs(5)), and clocks of hosts may differ.
SILENT_SECONDS = 300.0
#: Of the same host there is but one clock, and one cache of NFS: this is only as long as a disk may hang.
SILENT_HERE_SECONDS = 15.0
_LOOK_SECONDS = 0.5
_SOME_SECRET = "x1234567"  # is masked behind a name that tells of a secret


class AgentInfo(msgspec.Struct, kw_only=True):
    """What ``agent.json`` tells of one run. Times are Unix seconds."""

    run: str
    pid: int
    host: str
    command: list[str]
    cwd: str
    started_at: float
    updated_at: float
    ended_at: float | None = None
    endpoint: str | None = None  #: such as "http://127.0.0.1:19400/metrics"
    state: State = "starting"
    ending: Ending | None = None
    threshold: float | None = None  #: seconds of quiet that are a stall in what the run did last
    namespace: str = ""  #: of `pid`: see ``presence.process_namespace``
    reported: bool = True  #: its incidents were handed on to the chats: false until its agent has left
    rank_logs: list[str] = []  #: copies written so far, relative to the run's folder


def run_name(command: Sequence[str], now: float) -> str:
    """A name for a run nobody named: the script's stem and the local time it started."""
    return sanitise(
        f"{redact(_stem(_redacted(command)))}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
    )


def _stem(command: Sequence[str]) -> str:
    # Variables set for the command (env NAME=value …), and what was masked, are nobody's name.
    command = [word for word in command if not re.match(r"\w+=", word) and "***" not in word]
    scripts = [Path(word).stem for word in command if word.endswith((".py", ".sh"))]
    if scripts:
        return scripts[0]
    for before, word in zip(("", *command), command, strict=False):
        if before == "-m":
            return word
        if before == "-c":
            break
        if not word.startswith("-") and not _LAUNCHERS.fullmatch(Path(word).name):
            return Path(word).name
    named = [word for word in command if word != "env"]
    return Path(named[0]).name if named else "run"


def sanitise(name: str) -> str:
    """The name as one safe folder name and one safe label."""
    safe = re.sub(r"[^\w.+=-]+", "-", name, flags=re.UNICODE).strip(".-")
    return safe[:100] or "run"


def runs_home(home: Path) -> Path:
    """The folder that holds one folder per run."""
    return home / "runs"


class RunFolder:
    """One run's folder. Where it cannot be written, writes are skipped: a full disk must not end a run."""

    def __init__(self, run: str, path: Path, info: AgentInfo, problem: str | None = None) -> None:
        self.run = run
        self.path = path
        self.info = info
        self.problem = problem  #: why nothing is kept, or None
        self.failed_writes = 0

    @classmethod
    def create(
        cls,
        name: str | None,
        command: Sequence[str],
        *,
        home: Path,
        now: float | None = None,
        reuse: bool = False,
    ) -> RunFolder:
        """Make the folder. A name that is taken gets ``-2``, ``-3`` … unless `reuse` asks to go on in it."""
        now = time.time() if now is None else now
        base = sanitise(name) if name else run_name(command, now)
        parent = runs_home(home)
        run, path, problem = base, parent / base, None
        try:
            make_home(parent.parent)
            parent.mkdir(exist_ok=True)
            path = _claim(parent, base, reuse)
            run = path.name
            (path / "ranks").mkdir(exist_ok=True)
        except OSError as error:
            problem = f"{error.strerror}: {error.filename}"
        info = AgentInfo(
            run=run,
            pid=os.getpid(),
            host=socket.gethostname(),
            command=_redacted(command),
            cwd=_cwd(),
            started_at=now,
            updated_at=now,
            namespace=process_namespace(),
        )
        folder = cls(run, path, info, problem)
        folder.write_info()
        return folder

    def write_info(self, **changes: Any) -> None:
        """Take over `changes` and write ``agent.json`` in one piece: a reader sees the old or the new one."""
        for key, value in changes.items():
            setattr(self.info, key, value)
        self.write_json("agent.json", self.info)

    def write_json(self, name: str, record: Any) -> None:
        """Write one record as a JSON file of this folder, in one piece."""

        def write() -> None:
            fresh = self.path / f".{name}.new"
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
            fresh.replace(self.path / name)

        self._counted(write)

    def append_incident(self, incident: Incident) -> None:
        """Add one change of an incident to ``incidents.jsonl``."""
        self._append("incidents.jsonl", incident)

    def append_event(self, event: dict[str, Any]) -> None:
        """Add an event of a rank's probe to ``events.jsonl``."""
        self._append("events.jsonl", event)

    def _append(self, name: str, record: Any) -> None:
        def write() -> None:
            with (self.path / name).open("ab") as out:
                out.write(msgspec.json.encode(record) + b"\n")

        self._counted(write)

    def _counted(self, write: Callable[[], None]) -> None:
        """Write, if anything is kept of this run; count what fails."""
        if self.problem is None:
            try:
                write()
            except OSError:
                self.failed_writes += 1


def list_runs(home: Path) -> list[AgentInfo]:
    """Every run that left a readable ``agent.json``, newest first."""
    try:
        folders = [entry for entry in runs_home(home).iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    infos = [info for folder in folders if (info := read_info(folder)) is not None]
    return sorted(infos, key=lambda info: (info.started_at, info.run), reverse=True)


def read_info(folder: Path) -> AgentInfo | None:
    """The ``agent.json`` of one run's folder; ``None`` where there is none that can be read."""
    return read_record(folder / "agent.json", AgentInfo)


def read_record(path: Path, kind: type[_Record]) -> _Record | None:
    """What a JSON file of a run's folder holds; ``None`` where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def agent_alive(info: AgentInfo, now: float | None = None) -> bool:
    """Whether the agent still runs: the one judgement for all who list, close, prune or go on with runs.

    Its process tells, where its number is one of ours. That of another host, container or boot may be
    anybody's here: such an agent is gone once it has been silent for `SILENT_SECONDS`, or where the host has
    our name for `SILENT_HERE_SECONDS`.
    """
    if info.ended_at is not None:
        return False
    up = max(info.started_at, info.updated_at)  # not its start alone: the clock may have been set since
    here = info.host == socket.gethostname()
    if here and info.namespace == process_namespace():
        return is_there(info.pid, up)
    now = time.time() if now is None else now
    if abs(now - info.updated_at) <= (SILENT_HERE_SECONDS if here else SILENT_SECONDS):
        return True
    # What an older version wrote tells no namespace: believed where either sign speaks for it.
    return here and not info.namespace and is_there(info.pid, up)


def has_left(folder: Path, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether nobody watches this run any more, so that its folder may be gone on in.

    A container or host that starts anew comes back under its name before its agent has been silent for long:
    there it is waited, for `SILENT_HERE_SECONDS` at most, for whether that agent writes again.
    """
    known = fresh = read_info(folder)
    waited = 0.0
    while fresh is not None and agent_alive(fresh):
        restarted = fresh.host == socket.gethostname() and fresh.namespace not in ("", process_namespace())
        if not restarted or known is None or fresh.updated_at != known.updated_at:
            return False
        if waited > SILENT_HERE_SECONDS:  # it was written by a clock that was ahead
            return True
        sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
        fresh = read_info(folder)
    return True


def _claim(parent: Path, base: str, reuse: bool) -> Path:
    for number in range(1, 1000):
        path = parent / (base if number == 1 else f"{base}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            if reuse and path.is_dir():
                return path
        else:
            return path
    raise FileExistsError(17, "too many runs of this name", str(parent / base))


def _redacted(command: Sequence[str]) -> list[str]:
    """The command without its secrets: those within a word, and words that are one as a whole."""
    return [_redacted_word(before, word) for before, word in zip(("", *command), command, strict=False)]


def _redacted_word(before: str, word: str) -> str:
    # What the shell took for one word may hold a blank or a comma, which would end a secret in a log.
    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and before != "-c" and _is_secret(assigned[1]):
        return assigned[1] + "***"
    if before.startswith("--") and not word.startswith("-") and _is_secret(f"{before} "):
        return "***"
    return redact(word)


def _is_secret(name: str) -> bool:
    """Whether what follows this name is one."""
    return _SOME_SECRET not in redact(name + _SOME_SECRET)


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
