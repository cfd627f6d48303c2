"""``stallwatch run``: the command, with its output carried through, watched from a thread beside it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence

from stallwatch_exporter.bytequeue import ByteQueue
from stallwatch_exporter.capture import Capture, CommandProblem
from stallwatch_exporter.ending import EndingWatch
from stallwatch_exporter.incident import Ending, Sink
from stallwatch_exporter.mining import Miner
from stallwatch_exporter.opening import Notice, OnEnd, open_agent, to_stderr
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.signals import SignalRelay
from stallwatch_exporter.tailing import tail_files
from stallwatch_rules.catalogue import Catalogue

__all__ = ["OnEnd", "run_command", "tail_files"]


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
    queue, endings, started = ByteQueue(), EndingWatch(), time.time()
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
    )
    with SignalRelay() as relay:
        try:
            capture = Capture(command, queue)
        except CommandProblem as problem:
            notice(str(problem))
            return problem.exit_code
        relay.attach(capture.send, capture.resize)
        miner = Miner(opening, queue, capture.pid, notice)
        returncode = capture.wait()
        ended = time.time()
        capture.drain()

    def judge(last_lines: Sequence[str]) -> Ending:
        return endings.ending(
            returncode,
            seconds=ended - started,
            now=ended,
            passed_on=relay.passed_on,
            interrupted=relay.interrupted,
            last_lines=last_lines,
            environ=os.environ,
        )

    try:
        result = miner.finish(judge)
    except KeyboardInterrupt:
        result = None  # the command is gone, and nobody wants to wait for the report
    if result is not None and on_end is not None:
        agent, ending, diagnosis = result
        on_end(diagnosis, ending, agent.folder)
    return 128 - returncode if returncode < 0 else returncode
