"""For the agent, read a command's output in a dedicated thread, separately from passing the output on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from stallwatch_exporter import steady
from stallwatch_exporter.notices import surviving
from stallwatch_exporter.running.capture import ByteQueue, Chunk
from stallwatch_exporter.running.ending import EndingWatch
from stallwatch_exporter.running.memory import memory_limit, resident_bytes
from stallwatch_exporter.serving.server import MetricsServer
from stallwatch_exporter.watching.agent import Agent
from stallwatch_exporter.watching.opening import Notice
from stallwatch_rules.endings import Ending
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.digest import counted

TICK_SECONDS = 1.0
HASTE_SECONDS = 0.1  #: seconds between two ticks while a notification is due
FINISH_SECONDS = 6.0  #: seconds to read the remaining output of an ended command in order
LAST_BYTES = 1024 * 1024  #: bytes at the end of each stream that are read even after `FINISH_SECONDS`
REPORT_SECONDS = 14.0  #: seconds to copy the unread output, to read its end, and to conclude the run
_COPYING = 1 / 3  # Fraction of `REPORT_SECONDS` for copying. On a busy CPU, reading the end takes seconds.
SLICE_BYTES = 512 * 1024  #: maximum number of bytes read between two ticks
_MEMORY_SECONDS = 5.0
_MEMORY_LONGEST = 40.0  # maximum number of seconds between two readings if the memory use is steady and low
_MEMORY_STEADY = 0.1  # maximum relative change of a memory use that counts as steady
MOMENT_SECONDS = 0.25  #: seconds within which lines are read together because each reading has a fixed cost
_SAME_MOMENT = 0.01
SUSPENDED_SECONDS = 10.0  #: minimum duration of a one-second wait that implies a suspended process
_AFTER_A_FAULT = 0.1
_CLOSING = 2.0

Opened = tuple[Agent, MetricsServer | None]
Judge = Callable[[Sequence[str]], Ending]  # determines the command's ending from the last lines


class AgentLoop:
    """Run the agent in rounds. Each round reads part of the queue, and the agent ticks about every second."""

    def __init__(
        self,
        agent: Agent,
        queue: ByteQueue,
        pid: int,
        *,
        clock: Callable[[], float] = steady.now,
        measure: Callable[[int], int] = resident_bytes,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self._agent = agent
        self._stop_requested = stop_requested
        self._queue = queue
        self._pid = pid
        self._clock = clock
        self._measure = measure
        self._ticked = self._measured = 0.0
        self._limit: int | None = None
        self._held = 0
        self._measure_again = _MEMORY_SECONDS
        self.ended = False  #: true after the command has ended, because a lack of output is then not a stall

    def round(self) -> None:
        """Wait for the next tick, read at most one slice of the output printed until then, and then tick."""
        before = self._clock()
        timeout = max(0.0, min(TICK_SECONDS, self._ticked + TICK_SECONDS - before))
        timeout = min(timeout, max(HASTE_SECONDS, self._agent.due_in()))
        chunks = self._queue.take(timeout, SLICE_BYTES)
        waited = self._clock() - before
        if waited > SUSPENDED_SECONDS:
            self._agent.paused(waited - TICK_SECONDS)
        for together in moments(joined(chunks)):
            self._agent.feed(*together)
        # Read the clock before the queue, so that chunks added after this time were printed later.
        now = self._clock()
        behind = self.ended or self._queue.waiting
        after = TICK_SECONDS if self._agent.due_in() > 0 else HASTE_SECONDS
        if (chunks or not behind) and now - self._ticked >= after:
            self._ticked = now
            if self._stop_requested():
                self._agent.stop_requested(now)
            self._agent.dropped(self._queue.dropped)
            # While lines are unread, evaluate the run as of the last line that was read.
            self._agent.tick(now, read_until=chunks[-1].time if behind else None)
        if now - self._measured >= self._measure_again:
            self._measured = now
            self._measure_command()

    def _measure_command(self) -> None:
        if self._limit is None:
            self._limit = memory_limit()
            self._agent.metrics.host_memory_limit(self._limit)
        held, before = self._measure(self._pid), self._held
        self._held = held
        self._agent.metrics.host_memory(held)
        self._agent.memory.command(held, self._limit)
        calm = abs(held - before) <= _MEMORY_STEADY * before and held < self._limit / 2
        self._measure_again = min(2 * self._measure_again, _MEMORY_LONGEST) if calm else _MEMORY_SECONDS

    def leave(self, in_time: Callable[[], bool]) -> int:
        """Read only the end of each stream, copy the preceding output, and return the number of copied lines.

        When `in_time()` is false, drop the output that has not been copied yet, except for its end.
        """
        copied = 0
        while chunks := self._queue.take(0.0, SLICE_BYTES):
            for is_end, group in groupby(chunks, lambda chunk: self._queue.size(chunk.stream) < LAST_BYTES):
                if is_end:
                    for together in moments(joined(list(group))):
                        self._agent.feed(*together)
                else:
                    copied += sum(self._agent.copy(chunk) for chunk in joined(list(group)))
            if not in_time():
                self._queue.keep_end(LAST_BYTES)
        self._agent.dropped(self._queue.dropped)
        return copied


class LogReader:
    """Open the agent in a thread, pass it the output in `queue`, and return its diagnosis at the end."""

    def __init__(
        self,
        open_agent: Callable[[], Opened],
        queue: ByteQueue,
        pid: int,
        notice: Notice,
        linger: float = 0.0,
        endings: EndingWatch | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the thread that reads the output.

        After the run ends, /metrics stays open for `linger` seconds. `endings` counts OOM kills.
        `stop_requested` returns whether a signal has requested the end of the command.
        """
        self._stop_requested = stop_requested
        self._open_agent = open_agent
        self._queue = queue
        self._pid = pid
        self._notice = surviving(notice)
        self._judge: Judge | None = None
        self._ended_at: float | None = None
        self._read_until = self._copy_until = float("inf")
        self._linger = linger
        self._endings = endings
        self._concluded = threading.Event()
        self._result: tuple[Agent, Ending, Diagnosis] | None = None
        self._thread = threading.Thread(target=self._run, name="stallwatch agent", daemon=True)
        self._thread.start()

    def finish(
        self,
        judge: Judge,
        patience: float = FINISH_SECONDS,
        *,
        ended: float | None = None,
        report: float = REPORT_SECONDS,
    ) -> tuple[Agent, Ending, Diagnosis] | None:
        """Read the remaining output of the ended command and conclude the run. Return ``None`` on failure.

        After `patience` seconds, only the end of the remaining output is analyzed. The preceding output is
        only copied. The conclusion can then take `report` seconds.
        """
        self._ended_at = ended
        self._read_until = time.monotonic() + patience
        self._copy_until = self._read_until + report * _COPYING
        self._judge = judge
        self._queue.close()
        if not self._concluded.wait(patience + report):
            self._notice(f"the report is not ready after {patience + report:.0f} s and is skipped")
            return None
        return self._result

    def close(self) -> None:
        """Wait until /metrics is closed. Call this method after ``finish``."""
        self._thread.join(self._linger + _CLOSING)

    def _run(self) -> None:
        server = None
        try:
            agent, server = self._open_agent()
            agent.response.watch(self._pid)
            agent.end_evidence.programs.command = self._pid
            if self._endings is not None:
                agent.memory.counted, agent.memory.killed = self._endings.counted, self._endings.killed
            self._read_all(AgentLoop(agent, self._queue, self._pid, stop_requested=self._stop_requested))
            if self._queue.dropped:
                lines = counted(self._queue.dropped, "line")
                self._notice(
                    f"{lines} arrived too fast to be analyzed or copied; the log copies are incomplete"
                )
            if self._judge is not None:
                diagnosis = agent.end(agent.judged(self._judge(list(agent.last_lines))), self._ended_at)
                self._result = (agent, agent.ending, diagnosis)
        except Exception as error:  # an error must not affect the command
            self._notice(f"watching failed ({type(error).__name__}: {error}); the command continues")
            while not self._queue.ended:
                self._queue.take(TICK_SECONDS)
        finally:
            self._concluded.set()
        if server is not None:
            server.linger(self._linger)
            server.close()

    def _read_all(self, loop: AgentLoop) -> None:
        had_error = False
        while not self._queue.ended:
            loop.ended = self._judge is not None
            try:
                if time.monotonic() < self._read_until:
                    loop.round()
                    continue
                if copied := loop.leave(lambda: time.monotonic() < self._copy_until):
                    lines = counted(copied, "line")
                    self._notice(
                        f"there was no time to analyze {lines} before the end; "
                        "the log copies contain this output"
                    )
            except Exception as error:  # A lack of memory can be temporary, so the agent must continue.
                if not had_error:
                    self._notice(
                        f"an error occurred in the agent ({type(error).__name__}: {error}); "
                        "watching continues"
                    )
                had_error = True
                time.sleep(_AFTER_A_FAULT)  # avoids a busy loop


def joined(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Join neighboring chunks of one source that arrived at the same moment."""
    parts: list[Chunk] = []
    for chunk in chunks:
        first = parts[0] if parts else chunk
        if chunk.source != first.source or chunk.fresh or chunk.time - first.time > _SAME_MOMENT:
            if parts:
                yield first._replace(data=b"".join(part.data for part in parts))
            parts = []
        parts.append(chunk)
    if parts:
        yield parts[0]._replace(data=b"".join(part.data for part in parts))


def moments(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Group chunks by short periods of time, because a backlog can span minutes of output."""
    together: list[Chunk] = []
    for chunk in chunks:
        if together and chunk.time - together[0].time > MOMENT_SECONDS:
            yield together
            together = []
        together.append(chunk)
    if together:
        yield together
