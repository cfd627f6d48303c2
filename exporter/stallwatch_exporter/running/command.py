"""Run a command for ``stallwatch run``: pass its output through and watch the command from a thread."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

from stallwatch_exporter import steady
from stallwatch_exporter.cluster.elsewhere import advice
from stallwatch_exporter.cluster.joining import Engine
from stallwatch_exporter.incident import Sink
from stallwatch_exporter.notices import at_the_end, print_notice, surviving
from stallwatch_exporter.probe.api import SWITCH_VARIABLE
from stallwatch_exporter.rings.probing import make_folder, with_probe
from stallwatch_exporter.running.capture import ByteQueue, Capture, CommandProblem
from stallwatch_exporter.running.ending import EndingWatch, classify, slurm_end
from stallwatch_exporter.running.signals import SignalRelay, handling
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.log_reader import LogReader, Opened
from stallwatch_exporter.watching.opening import Notice, OnEnd, identity_here, open_agent
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue


def reporting() -> AbstractContextManager[None]:
    """Return a context in which SIGTERM and SIGHUP do not end this process before its report is complete.

    A scheduler that ends a job sends these signals to all processes of the job. The report and the
    notifications have their own time limits. Control+C still interrupts them.
    """
    return handling(lambda *_: None, signal.SIGTERM, signal.SIGHUP)


def run_command(
    command: Sequence[str],
    settings: ExporterSettings,
    sinks: Sequence[Sink],
    catalogue: Catalogue,
    *,
    name: str | None = None,
    metrics: bool = True,
    notice: Notice = print_notice,
    on_end: OnEnd | None = None,
    engine: Engine | None = None,
) -> int:
    """Run `command`, watch it, and return its exit code, or 128 + n after signal n.

    The codes 127 and 126 mean that the command could not be started. `on_end` receives the diagnosis after
    the command has ended. `engine` opens a transport other than HTTP between the agents of a run on several
    hosts. The command starts before everything else and continues even if it cannot be watched.
    """
    notice, guard = surviving(notice), at_the_end(notice)
    environ, rings = _probed(settings, notice)
    with reporting(), ExitStack() as at_end:
        if rings is not None:
            at_end.callback(shutil.rmtree, rings, ignore_errors=True)
        queue, endings, started = ByteQueue(), EndingWatch(), steady.now()

        def opening() -> Opened:
            if line := advice(command, os.environ, settings.join, name=name):
                notice(line)
            return open_agent(
                command,
                settings,
                sinks,
                catalogue,
                name=name,
                metrics=metrics,
                notice=notice,
                started=started,
                rings=rings,
                identity=identity_here(command, settings, name),
                engine=engine,
            )

        with SignalRelay() as relay:
            try:
                capture = Capture(command, queue, environ=environ)
            except CommandProblem as problem:
                notice(str(problem))
                return problem.exit_code
            relay.attach(capture.send, capture.resize)
            if capture.problem:
                notice(f"the output cannot be forwarded and read ({capture.problem}); the command continues")
            reader: LogReader | None = None
            try:
                reader = LogReader(
                    opening,
                    queue,
                    capture.pid,
                    notice,
                    settings.linger_seconds,
                    endings,
                    lambda: relay.stop_requested,
                )
            except RuntimeError as error:  # no more threads are available
                notice(f"the run cannot be watched ({error}); the command continues")
            returncode = capture.wait()
            ended = steady.now()
            # Later signals were sent after the command ended, so they cannot be the cause.
            passed_on, interrupted = relay.passed_on, relay.interrupted
            with guard("forwarding the last output"):
                capture.drain()

        def judge(last_lines: Sequence[str]) -> Ending:
            return classify(
                returncode,
                oom=endings.counts,
                seconds=ended - started,
                now=steady.wall(ended),
                passed_on=passed_on,
                interrupted=interrupted,
                last_lines=last_lines,
                slurm_end=slurm_end(os.environ),
            )

        result = None
        if reader is not None:
            # Control+C means that the user does not want to wait for the report of the ended command.
            with guard("concluding"), suppress(KeyboardInterrupt):
                result = reader.finish(judge, ended=ended)
        if reader is not None and result is not None:
            agent, ending, diagnosis = result
            if on_end is not None:
                with guard("printing the report"):
                    on_end(diagnosis, ending, agent.folder)
            with guard("reporting to the other hosts"), suppress(KeyboardInterrupt):
                agent.leave()
            with guard("closing /metrics"), suppress(KeyboardInterrupt):  # Control+C also ends the wait
                reader.close()
    return 128 - returncode if returncode < 0 else returncode


def _probed(settings: ExporterSettings, notice: Notice) -> tuple[dict[str, str], Path | None]:
    """Return the command's environment and the folder of the rings (``None`` if no probe is used)."""
    environ = dict(os.environ)
    if not settings.probe or environ.get(SWITCH_VARIABLE) == "0":
        return environ, None
    try:
        folder = make_folder(settings.home)
    except OSError as error:
        notice(f"the ranks run without the probe ({error.strerror}: {error.filename}); the log is still read")
        return environ, None
    return with_probe(environ, folder), folder
