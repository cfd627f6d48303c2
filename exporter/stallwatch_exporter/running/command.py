"""``stallwatch run``: the command, with its output carried through, watched from a thread beside it."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stallwatch_exporter import steady
from stallwatch_exporter.incident import Ending, Sink
from stallwatch_exporter.notices import surviving
from stallwatch_exporter.probe.api import SWITCH_VARIABLE
from stallwatch_exporter.probe.plain import is_replay
from stallwatch_exporter.rings.probing import make_folder, with_probe
from stallwatch_exporter.running.capture import ByteQueue, Capture, CommandProblem
from stallwatch_exporter.running.ending import EndingWatch
from stallwatch_exporter.running.signals import SignalRelay
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.tailing.follow import tail_files
from stallwatch_exporter.watching.log_reader import LogReader, Opened
from stallwatch_exporter.watching.opening import Notice, OnEnd, open_agent, to_stderr
from stallwatch_rules.pages.catalogue import Catalogue

__all__ = ["OnEnd", "reporting", "run_command", "tail_files"]


@contextmanager
def reporting() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP end nobody who has something left to tell.

    A scheduler that ends a job sends them to all of it. What the command is for them while it runs, this is
    for the report, and for the messages that leave after it: each has its own bounded time. Ctrl-C still
    interrupts.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # that the command would inherit
                before[number] = signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(
    command: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    *,
    name: str | None = None,
    metrics: bool = True,
    notice: Notice = to_stderr,
    on_end: OnEnd | None = None,
) -> int:
    """Run `command` and watch it; its exit code, 128 + n after signal n.

    127 and 126 mean that it could not be started. `on_end` is told when it ended. The command starts before
    anything else is set up, and goes on whatever happens to the watching.
    """
    notice = surviving(notice)
    environ, rings = _probed(command, settings, notice)
    with reporting():
        try:
            return _run_command(
                command, settings, sinks, catalogue, name, metrics, notice, on_end, environ, rings
            )
        finally:
            if rings is not None:
                shutil.rmtree(rings, ignore_errors=True)


def _miner(
    opening: Callable[[], Opened],
    queue: ByteQueue,
    pid: int,
    notice: Notice,
    linger: float,
    endings: EndingWatch,
    told_to_end: Callable[[], bool],
) -> LogReader | None:
    """The thread that watches; none where the system gives no more threads, as the command goes on."""
    try:
        return LogReader(opening, queue, pid, notice, linger, endings, told_to_end)
    except RuntimeError as error:
        notice(f"the run cannot be watched ({error}); the command goes on")
        return None


def _probed(
    command: Sequence[str], settings: ExporterSettings, notice: Notice
) -> tuple[dict[str, str], Path | None]:
    """The command's environment with the probe in it, and where its rings will be; neither if that fails.

    Nor for a replay: what it prints are the steps of another time.
    """
    environ = dict(os.environ)
    if is_replay(command) or not settings.probe or environ.get(SWITCH_VARIABLE) == "0":
        return environ, None
    try:
        folder = make_folder(settings.home)
    except OSError as error:
        notice(f"no probe in the ranks ({error.strerror}: {error.filename}); the log is read all the same")
        return environ, None
    return with_probe(environ, folder), folder


def _run_command(
    command: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    name: str | None,
    metrics: bool,
    notice: Notice,
    on_end: OnEnd | None,
    environ: Mapping[str, str],
    rings: Path | None,
) -> int:
    queue, endings, started = ByteQueue(), EndingWatch(), steady.now()
    opening = functools.partial(
        open_agent,
        command,
        settings,
        sinks,
        catalogue,
        name=name,
        metrics=metrics,
        notice=notice,
        started=started,
        rings=rings,
    )
    with SignalRelay() as relay:
        try:
            capture = Capture(command, queue, environ=environ)
        except CommandProblem as problem:
            notice(str(problem))
            return problem.exit_code
        relay.attach(capture.send, capture.resize)
        if capture.problem:
            notice(f"the output cannot be carried through and read ({capture.problem}); the command goes on")
        miner = _miner(
            opening, queue, capture.pid, notice, settings.linger_seconds, endings, lambda: relay.told_to_end
        )
        returncode = capture.wait()
        ended = steady.now()
        # What comes from here on is too late to have ended the command.
        passed_on, interrupted = relay.passed_on, relay.interrupted
        capture.drain()

    def judge(last_lines: Sequence[str]) -> Ending:
        return endings.ending(
            returncode,
            seconds=ended - started,
            now=steady.wall(ended),
            passed_on=passed_on,
            interrupted=interrupted,
            last_lines=last_lines,
            environ=os.environ,
        )

    try:
        result = miner.finish(judge, ended=ended) if miner is not None else None
    except KeyboardInterrupt:
        result = None  # the command is gone, and nobody wants to wait for the report
    if result is not None and on_end is not None:
        agent, ending, diagnosis = result
        on_end(diagnosis, ending, agent.folder)
    if miner is not None and result is not None:
        with contextlib.suppress(KeyboardInterrupt):  # nor for whoever reads /metrics
            miner.close()
    return 128 - returncode if returncode < 0 else returncode
