"""Ask all local ranks where they are, one way after the other, each for a bounded time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stallwatch_exporter.stacks import asking, processes
from stallwatch_exporter.stacks.asking import busy_worker, find_py_spy, spied
from stallwatch_exporter.stacks.local_ranks import LocalRank
from stallwatch_rules.stacks.doing import doing_of
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.reading import from_faulthandler, from_probe
from stallwatch_rules.stacks.records import Asked

ANSWER_SECONDS = 2.0  #: for the thread in the rank
COLLECTIVES_SECONDS = 1.0  #: for torch's flight recorder, from the first answer on
SIGNAL_SECONDS = 1.5  #: for faulthandler
SPY_SECONDS = 10.0  #: for py-spy
WORKERS_SECONDS = 1.5  #: for all workers of one rank's data loader
_LOOK_SECONDS = 0.02
_SPIES = 4


def gather(ranks: Sequence[LocalRank], *, interrupt: bool = True) -> list[Asked]:
    """Ask each rank; never raises for one that cannot be asked.

    A process in which no thread of ours waits is read by py-spy if that is there. The signal comes second and
    only if it may `interrupt`: a program in ``signal.pause()`` goes on after it.
    """
    asked = {one.rank: Asked(one.rank, one.pid) for one in ranks}
    for one in ranks:
        asked[one.rank].condition = "ended" if one.ended else processes.condition(one.pid)
    probed = [
        one for one in ranks if one.ring is not None and asked[one.rank].condition in ("alive", "blocked")
    ]
    question = str(time.time_ns())
    heard = _by_pipe(probed, question, asked)
    _from_outside([one for one in probed if one.rank not in heard], asked)
    silent = [one for one in probed if not asked[one.rank].origin]
    _by_signal([one for one in silent if interrupt or one.rank in heard], asked)
    for rank in heard:  # its thread has the question, and could not answer
        asked[rank].locked_out = asked[rank].origin == "signal"
    _late_answers([one for one in probed if asked[one.rank].locked_out], question, asked)
    _from_outside([one for one in ranks if not asked[one.rank].origin], asked)
    _look(ranks, asked)
    return list(asked.values())


def _by_pipe(ranks: Sequence[LocalRank], question: str, asked: dict[int, Asked]) -> set[int]:
    """Ask them all at once; the ranks whose pipe took the question."""
    waiting = {one.rank: one.ring for one in ranks if one.ring and asking.ask(one.ring, question)}
    recorders = dict(waiting)
    heard = set(waiting)

    def stacks_are_in() -> bool:
        for rank, ring in list(waiting.items()):
            told = asking.answer(ring, question)
            if told is not None:
                _take_answer(asked[rank], told)
                del waiting[rank]
        return not waiting

    def recorders_are_in() -> bool:
        for rank, ring in list(recorders.items()):
            told = asking.collectives(ring, question)
            if told is not None:
                asked[rank].recorded = read_recorder(told)
                del recorders[rank]
        return not recorders

    _until(stacks_are_in, ANSWER_SECONDS)
    for rank in waiting:
        recorders.pop(rank)
    _until(recorders_are_in, COLLECTIVES_SECONDS)
    return heard


def _take_answer(record: Asked, told: Mapping[str, Any]) -> None:
    """Fill in what the rank's own probe answered: its threads, and the totals that it counts."""
    record.threads, record.origin = from_probe(told), "probe"
    counters = told.get("counters")
    if isinstance(counters, dict):
        saves = counters.pop("saves", None)
        record.counters, record.saves = _numbers(counters), _numbers(saves if isinstance(saves, dict) else {})


def _numbers(found: Mapping[Any, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _late_answers(ranks: Sequence[LocalRank], question: str, asked: dict[int, Asked]) -> None:
    """A thread that answered after all was slow: no call keeps the interpreter lock from it."""
    for one in ranks:
        told = asking.answer(one.ring, question) if one.ring is not None else None
        if told is not None:
            record = asked[one.rank]
            _take_answer(record, told)
            record.locked_out = False


def _by_signal(ranks: Sequence[LocalRank], asked: dict[int, Asked]) -> None:
    dumps = {one.rank: asking.FaultDump(one.ring, one.pid) for one in ranks if one.ring is not None}
    waiting = {rank: dump for rank, dump in dumps.items() if dump.sent}

    def dumps_are_in() -> bool:
        for rank, dump in list(waiting.items()):
            text = dump.text()
            if text:
                asked[rank].threads, asked[rank].origin = from_faulthandler(text), "signal"
                del waiting[rank]
        return not waiting

    _until(dumps_are_in, SIGNAL_SECONDS)


def _from_outside(ranks: Sequence[LocalRank], asked: dict[int, Asked]) -> None:
    program = find_py_spy()
    left = [one for one in ranks if asked[one.rank].condition != "ended"]
    if program is None or not left:
        return
    todo: queue.SimpleQueue[LocalRank] = queue.SimpleQueue()
    for one in left:
        todo.put(one)

    def spy() -> None:
        while True:
            try:
                one = todo.get_nowait()
            except queue.Empty:
                return
            threads = spied(program, one.pid, SPY_SECONDS)
            if threads:
                asked[one.rank].threads, asked[one.rank].origin = threads, "py-spy"

    # Not an executor: it waits for its threads when the interpreter ends, and a py-spy may be past killing.
    spies = [threading.Thread(target=spy, name="stallwatch py-spy", daemon=True) for _ in left[:_SPIES]]
    for each in spies:
        each.start()
    for each in spies:
        each.join()


def _look(ranks: Sequence[LocalRank], asked: dict[int, Asked]) -> None:
    """What the kernel tells, looked at last: who is blocked still, and who waits for a lock."""
    holders = processes.lock_holders()
    names = {one.pid: f"rank {one.rank} (PID {one.pid})" for one in ranks}
    for one in ranks:
        record = asked[one.rank]
        now = record.condition if one.ended else processes.condition(one.pid)
        # A moment in the disk's queue is no blockade: it counts when it is there at both looks.
        record.condition = "alive" if now == "blocked" != record.condition else now
        silent = record.condition == "alive" and not any(thread.frames for thread in record.threads)
        if silent and one.ring is not None and asking.has_left(one.ring):
            record.condition = "ended"  # all but its process: torch and the kernel take their time
        if record.condition == "ended":
            record.left = one.ring is not None and asking.has_left(one.ring, well=True)
        else:
            record.kernel = processes.kernel_place(one.pid)
            record.transferred = processes.transferred(one.pid)
            record.processor = processes.processor_seconds(one.pid)
            kind = doing_of(record).kind
            if kind == "process":
                record.children = processes.children_seconds(one.pid)
            elif kind == "data":
                record.worker, record.worker_frames = busy_worker(one.pid, WORKERS_SECONDS)
            holder = holders.get(one.pid)
            record.lock_holder = names.get(holder, f"PID {holder}") if holder else ""


def _until(done: Callable[[], bool], patience: float) -> None:
    end = time.monotonic() + patience
    while not done() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def file_name(now: float) -> str:
    """The name of a file with the stacks of this moment."""
    return f"stacks-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}.txt"


def keep(folder: Path, name: str, text: str) -> str:
    """Write the stacks into the run's folder; the file's name, or an empty text where that failed."""
    try:
        (folder / name).write_text(text, "utf-8", "replace")
    except OSError:
        return ""
    return name
