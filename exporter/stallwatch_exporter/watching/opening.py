"""Set up a run for ``run`` and ``tail``: its folder, agent, metrics endpoint, and earlier output."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stallwatch_exporter.cluster.identity import RunIdentity, identify, starts_elsewhere
from stallwatch_exporter.cluster.joining import Engine, Joining
from stallwatch_exporter.incident import Sink
from stallwatch_exporter.rings.probing import Probing
from stallwatch_exporter.runs.naming import sanitise, script_name
from stallwatch_exporter.runs.prune import prune
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.serving.server import MetricsServer, is_everywhere, serve
from stallwatch_exporter.settings import ExporterSettings, is_own_folder, temporary_home
from stallwatch_exporter.tailing.tail import FileTailer
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.agent import Agent
from stallwatch_logs.line_format import prefix_of
from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.line_prefix import LinePrefix
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import duration_text
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.digest import counted

#: File that contains the namespace of a Pod.
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_SHOWN = 60  # maximum length of a requested name in a message
Notice = Callable[[str], None]
OnEnd = Callable[[Diagnosis, Ending, RunFolder], None]


def open_agent(
    command: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    *,
    name: str | None,
    metrics: bool,
    notice: Notice,
    started: float,
    reuse: bool = False,
    rings: Path | None = None,
    identity: RunIdentity | None = None,
    engine: Engine | None = None,
) -> tuple[Agent, MetricsServer | None]:
    """Create the folder, the agent, and the metrics endpoint of a run.

    Parts that cannot be created are reported and omitted. Old runs are removed in the background.
    """
    wanted = (name or "").strip() or None
    folder = RunFolder.create(
        wanted, command, home=settings.home, now=started, reuse=reuse, identity=identity
    )
    if folder.problem is not None:
        notice(
            f"the record of this run cannot be written anywhere ({folder.problem}); the run continues."
            " To keep the record of the next run, set STALLWATCH_HOME or TMPDIR to a writable folder"
        )
    elif folder.moved:
        notice(f"cannot write to the state folder ({folder.moved}); this run is stored in {folder.path}")
    if name is not None and (why := _why_renamed(name, folder.run if identity is None else sanitise(name))):
        notice(f"{why}; this run is called {folder.run}")

    def make_room() -> None:
        elsewhere = temporary_home(settings.home)
        for home in (settings.home, *[elsewhere] * is_own_folder(elsewhere)):
            prune(home, settings.keep_days, settings.keep_gb, started, notice)

    threading.Thread(target=make_room, name="stallwatch prune", daemon=True).start()
    probing = Probing(rings) if rings is not None else None
    run_metrics = RunMetrics(folder.run)
    joining = Joining(
        identity,
        folder,
        settings,
        sinks,
        notice=notice,
        metrics=run_metrics,
        engine=engine,
        ranks_may_say=not starts_elsewhere(command),
    )
    agent = Agent(
        folder,
        settings,
        catalogue,
        sinks,
        notice=notice,
        probing=probing,
        joining=joining,
        metrics=run_metrics,
    )
    server = serve(agent.metrics.registry, settings, notice) if metrics else None
    folder.write_info(
        endpoint=server.url if server is not None else None,
        everywhere=server is not None and is_everywhere(settings.host),
        reported=False,
    )
    return agent, server


def identity_here(command: Sequence[str], settings: ExporterSettings, name: str | None) -> RunIdentity | None:
    """If the run of this ``stallwatch run`` command can span several hosts, return the run's identity."""
    environ = dict(os.environ)
    if "KUBERNETES_SERVICE_HOST" in environ:
        with suppress(OSError, UnicodeDecodeError):
            environ.setdefault("POD_NAMESPACE", NAMESPACE_FILE.read_text().strip())
    called = sanitise((name or "").strip() or script_name(command))
    return identify(environ, command, settings.join, socket.gethostname(), name=called)


def _why_renamed(name: str, run: str) -> str:
    """Return why the run's name differs from the requested name, or "" if the names are equal."""
    if not name.strip():
        return "the name is empty"
    if run == name.strip():
        return ""
    shown = name if name.isprintable() else repr(name)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    if run != sanitise(name):
        return f"the name {shown} is taken"
    if len(name) > len(run) and name.startswith(run):
        return f"the name {shown} is longer than {len(run)} characters"
    return f"the name {shown} contains characters that are not allowed in the name of a run"


MOST_BYTES = 512 * 1024 * 1024  #: maximum number of bytes to read. The beginning of longer files is skipped.
_LEAST_BYTES = 4 * 1024 * 1024
_END = 64 * 1024
_BEGINNING = 64 * 1024
_APART = 60.0  # Seconds. A missing time zone causes a larger difference, but a slow writer does not.
_ZONES, _ZONE_STEP = 15 * 3600.0, 900.0  # largest time zone difference and its granularity, in seconds


def read_history(agent: Agent, files: TailSet, *, shifted: bool = True) -> tuple[Diagnosis, int, float]:
    """Pass the existing content of the files to the agent as history.

    If `shifted` is true, move the timestamps of each file so that its last timestamp is its modification
    time. If an earlier agent with the same name has counted some of the content, the agent reads that content
    but does not recount it. Return the diagnosis so far, the number of omitted bytes, and the largest shift
    of timestamps, in seconds.
    """
    limit = max(_LEAST_BYTES, MOST_BYTES // max(1, len(files.tailers)))
    left_out, moved = 0, 0.0
    for path, tailer in files.tailers.items():
        source, rank = str(path), rank_of_path(str(path))
        shift = clock_shift(tailer, agent.now) if shifted else 0.0
        moved = max(moved, shift, key=abs)
        for data in tailer.before(limit):
            agent.history(source, data, rank, counted=False, shift=shift)
        left_out += tailer.skip_to_last(limit)
        while True:
            for portion in tailer.poll():
                agent.history(source, portion.data, rank, counted=True, shift=shift)
            if not tailer.more:
                break
    last_sign = files.modified
    ended = agent.folder.info.started_at if last_sign is None else last_sign
    return agent.history_ends(ended), left_out, moved


def clock_shift(tailer: FileTailer, now: float = math.inf) -> float:
    """Return the shift in seconds that makes the file's last timestamp equal to its modification time.

    The result never moves the last timestamp past `now`, because a file server's clock can be ahead.
    """
    modified = tailer.modified
    try:
        with tailer.path.open("rb") as file:
            head = file.read(_BEGINNING)
            file.seek(max(0, file.seek(0, 2) - _END))
            data = file.read(_END)
    except OSError:
        return 0.0
    last = _last_time(data, None)
    if last is None and (lead := prefix_of(head)) is not None:
        last = _last_time(data, lead)
    if modified is None or last is None or abs(min(modified, now) - last) < _APART:
        return 0.0
    return min(modified, now) - last


def _last_time(data: bytes, lead: LinePrefix | None) -> float | None:
    reader = LineReader("", lead=lead)
    lines = reader.feed(data) + reader.finish()
    return next((line.time for line in reversed(lines) if line.time is not None), None)


def shift_note(shift: float) -> str:
    """Return a note that timestamps were shifted, or "" if a time zone explains `shift` (seconds)."""
    off = (shift + _ZONE_STEP / 2) % _ZONE_STEP - _ZONE_STEP / 2
    if not shift or (abs(shift) <= _ZONES and abs(off) <= _APART):
        return ""
    where, days = "later" if shift > 0 else "earlier", round(abs(shift) / 86400)
    by = counted(days, "day") if days >= 2 else duration_text(abs(shift))
    return (
        f"the timestamps are shifted {by} {where}, so that the last one matches the time when the"
        " file was last modified (if the file is a copy, the time of the copy)"
    )


def summary(agent: Agent, diagnosis: Diagnosis, files: int, left_out: int, shift: float = 0.0) -> str:
    """Return a one-line summary of the history."""
    progress = diagnosis.progress
    parts = [f"read {counted(files, 'file')} as history ({counted(diagnosis.stats.lines, 'line')})"]
    if left_out:
        parts.append(f"skipped the first {left_out / 1e6:,.0f} MB")
    if moved := shift_note(shift):
        parts.append(moved)
    if progress.last_step is not None:
        total = f" of {progress.total_steps}" if progress.total_steps else ""
        parts.append(f"at step {progress.last_step}{total}")
    rules = [finding.rule for finding in diagnosis.findings if finding.harm != "harmless"]
    if rules:
        parts.append(f"rules found: {', '.join(rules[:5])}{', …' if len(rules) > 5 else ''}")
    return f"{agent.folder.run}: {'; '.join(parts)}"


def outlook(agent: Agent) -> str:
    """Return a line that states the quiet time and the threshold, or "" if the threshold is exceeded."""
    state = agent.stall_state
    if state.seconds > state.threshold:
        return ""
    quiet, threshold = duration_text(state.seconds), duration_text(state.threshold)
    until = " (until the duration of a step is known)" if state.learning else ""
    return (
        f"{agent.folder.run}: no sign of progress for {quiet}; a stall is reported after {threshold}{until}"
    )


def stream_of(path: Path) -> str:
    """Return the stream ("stdout" or "stderr") that a file contains, inferred from the file's name."""
    return "stderr" if "stderr" in path.name or path.suffix == ".err" else "stdout"
