"""The thread that mines what a command prints, while its output passes by."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from stallwatch_exporter.agent import Agent
from stallwatch_exporter.bytequeue import ByteQueue, Chunk
from stallwatch_exporter.hostmemory import resident_bytes
from stallwatch_exporter.incident import Ending
from stallwatch_exporter.opening import Notice
from stallwatch_exporter.server import MetricsServer
from stallwatch_rules.records import Diagnosis

TICK_SECONDS = 1.0
FINISH_SECONDS = 120.0  #: how long the report may take after the command ended
_MEMORY_SECONDS = 5.0
_SAME_MOMENT = 0.01
_STOOD_STILL = 10.0  # a wait of a second that took longer than this: we were stopped, or the machine slept

Opened = tuple[Agent, MetricsServer | None]
Judge = Callable[[Sequence[str]], Ending]  # from the last lines to how the command ended


class Miner:
    """Opens the agent in its thread, feeds it from `queue`, and asks it for the diagnosis at the end."""

    def __init__(self, open_agent: Callable[[], Opened], queue: ByteQueue, pid: int, notice: Notice) -> None:
        self._open_agent = open_agent
        self._queue = queue
        self._pid = pid
        self._notice = notice
        self._judge: Judge | None = None
        self._result: tuple[Agent, Ending, Diagnosis] | None = None
        self._thread = threading.Thread(target=self._run, name="stallwatch agent", daemon=True)
        self._thread.start()

    def finish(
        self, judge: Judge, patience: float = FINISH_SECONDS
    ) -> tuple[Agent, Ending, Diagnosis] | None:
        """The command ended: mine the rest and conclude. ``None`` where that failed or took too long."""
        self._judge = judge
        self._queue.close()
        self._thread.join(patience)
        if self._thread.is_alive():
            self._notice(f"the report is not ready after {patience:.0f} s and is left out")
            return None
        return self._result

    def _run(self) -> None:
        try:
            agent, server = self._open_agent()
            self._mine(agent)
            if self._judge is not None:
                ending = self._judge(list(agent.last_lines))
                self._result = (agent, ending, agent.end(ending))
            if server is not None:
                server.close()
        except Exception as error:  # whatever it is, the command must not be affected
            self._notice(f"the watching failed ({type(error).__name__}: {error}); the command goes on")
            while not self._queue.ended:
                self._queue.take(TICK_SECONDS)

    def _mine(self, agent: Agent) -> None:
        ticked = weighed = 0.0
        while not self._queue.ended:
            before = time.time()
            chunks = self._queue.take(max(0.0, min(TICK_SECONDS, ticked + TICK_SECONDS - before)))
            waited = time.time() - before
            if waited > _STOOD_STILL:
                agent.paused(waited - TICK_SECONDS)
            for chunk in joined(chunks):
                agent.feed(chunk.stream, chunk.data, chunk.time, stream=chunk.stream, fresh=chunk.gap)
            now = time.time()
            if not 0 <= now - ticked < TICK_SECONDS:
                ticked = now
                agent.dropped(self._queue.dropped)
                agent.tick(now)
            if not 0 <= now - weighed < _MEMORY_SECONDS:
                weighed = now
                agent.metrics.host_memory(resident_bytes(self._pid))


def joined(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Neighbouring pieces of one stream that came at the same moment, as one."""
    parts: list[Chunk] = []
    for chunk in chunks:
        first = parts[0] if parts else chunk
        if chunk.stream != first.stream or chunk.gap or chunk.time - first.time > _SAME_MOMENT:
            if parts:
                yield first._replace(data=b"".join(part.data for part in parts))
            parts = []
        parts.append(chunk)
    if parts:
        yield parts[0]._replace(data=b"".join(part.data for part in parts))
