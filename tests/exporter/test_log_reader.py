"""The log reader when it falls behind, fails, or runs out of time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psutil
import pytest

from stallwatch_exporter.running.capture import ByteQueue, Chunk
from stallwatch_exporter.running.memory import resident_bytes
from stallwatch_exporter.watching.log_reader import MOMENT_SECONDS, SLICE_BYTES, AgentLoop, LogReader
from stallwatch_rules.endings import Ending
from stallwatch_rules.messages import message

Make = Callable[..., Any]
FILLER = b"".join(b"chatter of a healthy run, number %d\n" % number for number in range(2000))


def ended(_: object) -> Ending:
    return Ending(kind="finished", exit_code=0, detail="The command exited with 0.")


def agent_loop(run: Any, queue: ByteQueue, cost: float = 0.0) -> AgentLoop:
    """Return an agent loop with the run's clock, in which each piece takes `cost` seconds to read."""
    feed = run.agent.feed

    def slow(*chunks: Chunk) -> None:
        run.now += cost
        feed(*chunks)

    run.agent.feed = slow
    return AgentLoop(run.agent, queue, os.getpid(), clock=lambda: run.now, measure=lambda _: 1)


def test_unread_backlog_is_not_a_stall(run: Any) -> None:
    """The reader falls minutes behind a run that makes a step every two seconds."""
    run.steps(1, 10)
    queue = ByteQueue()
    begin = run.now
    for number in range(11, 111):
        at = begin + 2.0 * (number - 10)
        queue.put("stdout", FILLER + b"step %d/1000 loss 0.5\n" % number, at)
    run.now = at
    work = agent_loop(run, queue, cost=20.0)
    while queue.waiting:
        assert run.sent == []
        work.round()
        assert run.kept("agent.json")["updated_at"] == run.now  # the agent shows that it is alive
    assert run.metric("stallwatch_step") == 110


def test_stall_behind_a_backlog_is_reported_after_reading(run: Any) -> None:
    run.steps(1, 10)
    queue = ByteQueue()
    for number in range(11, 31):
        queue.put("stdout", FILLER + b"step %d/1000 loss 0.5\n" % number, run.now + 2.0 * (number - 10))
    work = agent_loop(run, queue, cost=20.0)
    while queue.waiting:
        work.round()
    run.now += 31.0
    work.round()
    (stall,) = run.sent
    assert stall.kind == "stall" and stall.step == 30


def test_silence_after_the_end_of_the_command_is_not_a_stall(run: Any) -> None:
    run.steps(1, 10)
    queue = ByteQueue()
    queue.put("stdout", b"step 11/1000 loss 0.5\n", run.now + 2.0)
    queue.close()
    work = agent_loop(run, queue, cost=500.0)
    work.ended = True
    work.round()
    diagnosis = run.agent.end(ended(None), run.folder.info.started_at + 30.0)
    assert run.sent == [] and diagnosis.verdict == "finished"


def test_backlog_is_read_in_slices() -> None:
    queue = ByteQueue()
    for number in range(4):
        queue.put("stdout", b"x" * SLICE_BYTES, float(number))
    assert [len(chunk.data) for chunk in queue.take(0.0, SLICE_BYTES)] == [SLICE_BYTES]
    assert queue.waiting
    assert len(queue.take(0.0)) == 3
    assert not queue.waiting


def test_chunks_of_one_second_are_read_together_with_their_times(run: Any) -> None:
    queue = ByteQueue()
    for number in range(1, 13):  # ten lines a second, then one after a pause
        queue.put("stdout", b"step %d/1000 loss 0.5\n" % number, run.now + 0.1 * number)
    queue.put("stdout", b"step 13/1000 loss 0.5\n", run.now + 9.0)
    feed, rounds = run.agent.feed, []

    def counting(*chunks: Chunk) -> None:
        rounds.append([round(chunk.time - run.now, 1) for chunk in chunks])
        feed(*chunks)

    run.agent.feed = counting
    agent_loop(run, queue).round()
    assert all(together[-1] - together[0] <= MOMENT_SECONDS + 0.05 for together in rounds)
    assert [at for together in rounds for at in together] == [
        *(round(0.1 * number, 1) for number in range(1, 13)),
        9.0,
    ]
    assert len(rounds) < 13 and rounds[-1] == [9.0]
    assert run.metric("stallwatch_step") == 13


def test_constant_memory_is_measured_less_often(run: Any) -> None:
    held, with_memory = [1000], []

    def measure(_: int) -> int:
        with_memory.append(round(run.now - begin))
        return held[0]

    begin = run.now
    work = AgentLoop(run.agent, ByteQueue(), os.getpid(), clock=lambda: run.now, measure=measure)
    for second in range(170):
        if second == 140:
            held[0] = 2000
        work.round()
        run.now += 1.0
    gaps = [after - before for before, after in pairwise(with_memory)]
    assert gaps[:5] == [5, 10, 20, 40, 40]
    assert gaps[-1] == 5  # the gap had grown before


def test_read_bytes_free_space_in_the_queue() -> None:
    queue = ByteQueue(max_bytes=10)
    queue.put("stdout", b"12345678", 0.0)
    queue.take(0.0, 1)
    queue.put("stdout", b"12345678", 1.0)
    assert queue.dropped == 0


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), OSError(12, "Cannot allocate memory")])
def test_unmeasurable_memory_is_none(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(psutil.Process, "children", refuse)
    assert resident_bytes(os.getpid()) == 0
    monkeypatch.undo()
    monkeypatch.setattr(psutil.Process, "memory_info", refuse)
    assert resident_bytes(os.getpid()) == 0


def test_failure_of_the_reader_does_not_end_monitoring(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notice about the failure fails too, because the reader of stderr is gone."""
    queue = ByteQueue()
    stumbled = threading.Event()

    def gone(text: str) -> None:
        stumbled.set()
        raise BrokenPipeError(32, "Broken pipe")

    real = AgentLoop.round
    left = [MemoryError("no room"), OSError(24, "Too many open files")]

    def stumbling(self: AgentLoop) -> None:
        if left:
            raise left.pop()
        real(self)

    monkeypatch.setattr(AgentLoop, "round", stumbling)
    reader = LogReader(lambda: (run.agent, None), queue, os.getpid(), gone)
    assert stumbled.wait(120)
    queue.put("stdout", b"step 1/10 loss 0.5\n", run.now)
    result = reader.finish(ended, ended=run.now)
    assert result is not None and left == []
    assert result[2].progress.last_step == 1


@pytest.mark.timeout(600)  # the finish alone may take four minutes
def test_unread_output_is_copied_and_reported(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    go = threading.Event()
    queue = ByteQueue()
    monkeypatch.setattr("stallwatch_exporter.watching.log_reader.LAST_BYTES", 10)
    monkeypatch.setattr("stallwatch_exporter.watching.log_reader.SLICE_BYTES", 10)
    queue.put("stdout", b"step 1/10 loss 0.5\nstep 2/10 loss 0.4\nste", run.now)
    queue.put("stdout", b"p 3/10 loss 0.3\nstep 4/10 loss 0.2\n", run.now)
    queue.put("stderr", b"ValueError: bad shape\n", run.now)

    def late() -> Any:
        go.wait()
        return run.agent, None

    reader = LogReader(late, queue, os.getpid(), messages.append)
    close = queue.close
    monkeypatch.setattr(
        queue, "close", lambda: (close(), go.set())
    )  # finish() closes the queue after it has set its limits
    result = reader.finish(ended, patience=0.0, ended=run.now, report=240.0)
    assert result is not None
    progress = result[2].progress
    assert (progress.first_step, progress.last_step) == (4, 4)  # the line of step 3 is incomplete
    assert result[0].last_lines[-1] == "ValueError: bad shape"
    assert message("diagnosis.unread-lines", count=2) in result[2].notes
    assert messages == [
        "there was no time to analyze 2 lines before the end; the log copies contain this output"
    ]
    copied = (run.folder.path / "output.log").read_bytes()
    assert b"step 2/10" in copied and b"step 3/10" in copied
    run.agent.tick(run.now)
    assert run.metric("stallwatch_dropped_records_total") == 2


def test_unread_output_is_not_silence(run: Any) -> None:
    run.steps(1, 10)
    run.agent.feed(Chunk("stdout", b"an unfinished li", run.now))
    run.now += 300.0
    run.agent.copy(Chunk("stdout", b"ne\nstep 11/1000 loss 0.5\n", run.now))
    run.agent.feed(Chunk("stdout", b"the end of the output, without a step\n", run.now))
    assert run.agent.end(ended(None), run.now).verdict == "finished"


def test_copying_the_rest_is_bounded_in_time(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ByteQueue()
    lines = SLICE_BYTES // 7 + 1
    for number in range(4):  # the first two belong to the start of the output, which the queue keeps
        queue.put("stdout", b"a line\n" * lines, float(number))
    queue.put("stdout", b"RuntimeError: the end\n", 9.0)
    queue.close()
    monkeypatch.setattr("stallwatch_exporter.watching.log_reader.LAST_BYTES", 20)
    assert agent_loop(run, queue).leave(lambda: False) == 2 * lines
    assert queue.ended and queue.dropped == 2 * lines
    assert run.agent.last_lines[-1] == "RuntimeError: the end"
    run.agent.tick(run.now)
    assert run.metric("stallwatch_dropped_records_total") == 4 * lines
    run.agent.end(ended(None), run.now)
    assert [gap.lines for gap in run.folder.info.gaps] == [2 * lines]


@pytest.mark.parametrize("again", [(41, 60), (11, 30)])
def test_signaled_run_can_end_slowly(run: Any, again: tuple[int, int]) -> None:
    """After Ctrl-C, the run saves without output: no alarm, and no action against the command."""
    run.steps(1, 40)
    messages = [False]
    work = AgentLoop(
        run.agent,
        ByteQueue(),
        os.getpid(),
        clock=lambda: run.now,
        measure=lambda _: 1,
        stop_requested=lambda: messages[0],
    )
    messages[0] = True
    run.say("KeyboardInterrupt: saving out/interrupted")
    for _ in range(90):
        run.now += 1.0
        work.round()
    assert run.sent == []
    run.steps(*again)  # the run trained on, or was restarted: it is watched as before
    for _ in range(90):
        run.now += 1.0
        work.round()
    (stall,) = run.sent
    assert stall.kind == "stall" and stall.step == again[1]
