"""Watch a run for ``stallwatch tail`` through the files that the run writes."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.identity import identify
from stallwatch_exporter.cluster.joining import Engine
from stallwatch_exporter.incident import Sink
from stallwatch_exporter.notices import print_notice
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.running.signals import handling
from stallwatch_exporter.runs.naming import sanitise
from stallwatch_exporter.runs.runfolder import has_left, read_record, runs_home
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.tailing.tail import Position
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.agent import Agent
from stallwatch_exporter.watching.log_reader import HASTE_SECONDS, SUSPENDED_SECONDS, TICK_SECONDS
from stallwatch_exporter.watching.opening import (
    Notice,
    OnEnd,
    open_agent,
    outlook,
    read_history,
    stream_of,
    summary,
)
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.endings import Ending
from stallwatch_rules.lines.ranks import rank_of_path
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

_SAVE_SECONDS = 5.0
_IMPATIENT = 1.0  # seconds after a SIGINT within which further SIGINTs belong to the same request
POSITIONS = "positions.json"  #: file in the run's folder with the position in each followed file


def tail_files(
    globs: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    *,
    name: str | None = None,
    once: bool = False,
    until_idle: float | None = None,
    metrics: bool = True,
    notice: Notice = print_notice,
    on_end: OnEnd | None = None,
    stopped: Callable[[], bool] = lambda: False,
    engine: Engine | None = None,
) -> int:
    """Watch files until Control+C or until no file grows for `until_idle` seconds.

    If `once` is true, read the files only once. In this case, the diagnosis and the exit code are the same as
    for ``stallwatch diagnose``. Otherwise, the existing content of the files counts as history. The agent
    learns the thresholds from this history and prints a summary. The history opens an incident only if the
    run is still stalled and is watched until Control+C. A second ``stallwatch tail`` with the same `name`
    continues where the first command stopped.
    """
    started = steady.now()
    if name is not None and not name.strip():
        notice("the name is empty and is ignored")
        name = None
    # Ignore the environment variables of this shell because the run might belong to another job.
    identity = identify({}, [], settings.join, "")
    if identity is not None:
        name = identity.run_label("")
    folder = runs_home(settings.home) / sanitise(name) if name else None
    reuse = folder is not None and has_left(folder)
    positions = (read_record(folder / POSITIONS, dict[str, Position]) if folder and reuse else None) or {}
    files = TailSet(globs, positions, notice)
    files.discover()
    if not files.tailers:
        if once:
            notice(f"no file matches {' '.join(globs)}; specify an existing file, folder, or pattern")
            return 2
        notice(f"no file matches {' '.join(globs)} yet; waiting for one")
    agent, server = open_agent(
        ["stallwatch", "tail", *globs],
        settings,
        sinks,
        catalogue,
        name=name or sanitise(_name_of(globs, started)),
        metrics=metrics,
        notice=notice,
        started=started,
        reuse=reuse,
        identity=identity,
        engine=engine,
    )
    stop_requested, requested_at = threading.Event(), math.inf

    def stop(number: int, _: object) -> None:
        nonlocal requested_at
        # timeout(1) sends SIGINT twice. Only a later Control+C shows that the user is impatient.
        if number == signal.SIGINT and steady.now() > requested_at + _IMPATIENT:
            raise KeyboardInterrupt
        requested_at = min(requested_at, steady.now())
        stop_requested.set()

    with handling(stop, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if files.tailers:
            diagnosis, left_out, shift = read_history(agent, files, shifted=not once)
            notice(summary(agent, diagnosis, len(files.tailers), left_out, shift))
            if once or until_idle is not None:  # in these modes, the files might belong to an earlier run
                agent.paused(max(0.0, steady.now() - (files.modified or started)))
            elif line := outlook(agent):
                notice(line)
        agent.tick()
        follower = Follower(agent, files)
        if not once:
            follower.follow(lambda: stop_requested.is_set() or stopped(), until_idle)
        follower.close()
    now = steady.now()
    ending = Ending(
        kind="unknown",
        exit_code=None,
        detail=message("run.not-in-log" if once else "run.stopped-watching"),
        seconds=now - started,
    )
    found, problems = _postmortem(files, catalogue) if once else (None, [])
    for problem in problems:
        notice(str(problem))
    diagnosis = agent.end(ending, now, found=found)
    if on_end is not None:
        on_end(diagnosis, ending, agent.folder)
    agent.leave()
    if server is not None:
        server.linger(settings.linger_seconds)
        server.close()
    return 2 if problems else int(once and diagnosis.in_trouble)


def _postmortem(files: TailSet, catalogue: Catalogue) -> tuple[Diagnosis, list[InputProblem]]:
    """Return the diagnosis of the files as logs of an ended run. Their timestamps are not shifted."""
    from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths  # the import is slow

    return diagnose_paths([*files.tailers], Options(catalogue))


class Follower:
    """Pass the new content of the files to an agent."""

    def __init__(self, agent: Agent, files: TailSet, clock: Callable[[], float] = steady.now) -> None:
        self._agent = agent
        self._clock = clock
        self._files = files
        self._waker = Waker()
        self._waker.watch(files.folders)
        self._looked = self._ticked = self._saved = self._grown = 0.0
        self._all_read = clock()  # last time at which all content was read

    def follow(self, stopped: Callable[[], bool], until_idle: float | None) -> None:
        """Follow the files until `stopped`, or until no file has grown for `until_idle` seconds."""
        self._grown = self._clock()
        while not stopped():
            before = self._clock()
            changed = set(self._files.more) or self._waker.wait(
                min(TICK_SECONDS, max(HASTE_SECONDS, self._agent.due_in()))
            )
            if (waited := self._clock() - before) > SUSPENDED_SECONDS:
                self._agent.paused(waited - TICK_SECONDS)
                self._grown += waited - TICK_SECONDS
            now = self.step(changed)
            if until_idle is not None and now - self._grown >= until_idle:
                return

    def step(self, changed: set[Path]) -> float:
        """Read the changed files. About once a second, read all files and call the agent's ``tick``.

        Return the last time read from the clock. If the files contain much new content, the method also
        calls ``tick`` while it reads the files.
        """
        began = now = self._clock()
        everything = _is_due(now, self._looked)
        if everything:
            if self._files.discover():
                self._waker.watch(self._files.folders)
            self._looked = now
        for path, portion in self._files.poll(None if everything else changed):
            self._grown = now = max(now, self._clock())
            name = str(path)
            self._agent.feed(
                Chunk(name, portion.data, now, portion.fresh, stream_of(path), rank_of_path(name))
            )
            if now - began >= TICK_SECONDS and _is_due(now, self._ticked):
                self._tick(now, behind=True)
        behind = bool(self._files.more)
        if not behind:
            self._all_read = now
        hasty = self._agent.due_in() <= 0 and _is_due(now, self._ticked, HASTE_SECONDS)
        if everything or hasty or _is_due(now, self._ticked):
            self._tick(now, behind)
        return now

    def _tick(self, now: float, behind: bool) -> None:
        """Let the agent update the run's state, as of the last time at which all content was read."""
        self._ticked = now
        self._agent.tick(now, read_until=min(now, self._all_read) if behind else None)
        if _is_due(now, self._saved, _SAVE_SECONDS):
            self.save()
            self._saved = now

    def save(self) -> None:
        """Store the current positions in the files."""
        self._agent.folder.write_json(POSITIONS, self._files.positions)

    def close(self) -> None:
        """Store the positions and close all files."""
        self.save()
        self._waker.close()
        self._files.close()


def _is_due(now: float, last: float, after: float = TICK_SECONDS) -> bool:
    return now - last >= after


def _name_of(globs: Sequence[str], started: float) -> str:
    """Return a name for a run, built from the name of the first file or its folder, and the start time."""
    first = Path(globs[0]).absolute()
    plain = not any(char in first.name for char in "*?[")
    word = (first.stem if first.suffix else first.name) if plain else first.parent.name
    return f"{word or 'tail'}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}"


_GATHER_SECONDS = 0.05  # seconds for which changes are collected, so that busy files cause fewer wake-ups


class Waker:
    """Wait for changes to files in some folders. If inotify is not available, only wait for the timeout."""

    def __init__(self) -> None:
        self._folders: dict[Path, int] = {}
        self._names: dict[int, Path] = {}
        self._inotify: Any = None
        try:
            import inotify_simple
        except ImportError:
            return
        try:
            self._inotify = inotify_simple.INotify()
        except OSError:
            return
        flags = inotify_simple.flags
        self._mask = int(flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE)

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch these folders in addition to the known folders."""
        for folder in folders:
            if self._inotify is None or folder in self._folders:
                continue
            try:
                watch = self._inotify.add_watch(folder, self._mask)
            except OSError:
                continue  # The folder was removed, or no watch is left. The slow poll reads its files.
            self._folders[folder] = watch
            self._names[watch] = folder

    def wait(self, seconds: float) -> set[Path]:
        """Wait up to `seconds` seconds for a change. Return the paths that have changed."""
        if self._inotify is None:
            time.sleep(seconds)
            return set()
        events = list(
            self._inotify.read(timeout=max(0, int(seconds * 1000)), read_delay=_GATHER_SECONDS * 1000)
        )
        for event in events:
            if event.mask & 0x8000:  # IN_IGNORED: the folder was removed, but it can be recreated
                self._folders.pop(self._names.pop(event.wd, Path()), None)
        return {self._names[event.wd] / event.name for event in events if event.wd in self._names}

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
