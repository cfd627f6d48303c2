"""Query all local ranks for their stacks with several methods, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from stallwatch_exporter.probe.layout import LARGEST
from stallwatch_exporter.probe.stacks import COLLECTIVES
from stallwatch_exporter.stacks import processes, queries
from stallwatch_exporter.stacks.local_ranks import LocalRank
from stallwatch_exporter.stacks.queries import busy_worker, find_py_spy, spied
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.rank_activity import activity_of_rank
from stallwatch_rules.stacks.reading import from_faulthandler, from_probe
from stallwatch_rules.stacks.records import Condition, RankAnswer

ANSWER_SECONDS = 2.0  #: seconds to wait for the stacks from the probe's thread in each rank
COLLECTIVES_SECONDS = 1.0  #: seconds to wait for the data of the flight recorder, after the stacks
SIGNAL_SECONDS = 1.5  #: seconds to wait for the dump that faulthandler writes
SPY_SECONDS = 10.0  #: seconds to wait for each py-spy process
WORKERS_SECONDS = 1.5  #: seconds to wait for all workers of one rank's data loader together
_LOOK_SECONDS = 0.02
_SPIES = 4

_Pairs = Sequence[tuple[LocalRank, RankAnswer]]
_Waiting = TypeVar("_Waiting")


def gather(ranks: Sequence[LocalRank], *, interrupt: bool = True) -> list[RankAnswer]:
    """Query each rank and return the answers. A rank that cannot be queried causes no error.

    If the probe's thread in a rank does not answer, a signal makes faulthandler write the stacks. If the
    rank has no such thread, py-spy reads the stacks if it is installed. In all other cases, the signal is
    sent only if `interrupt` is true, because a signal ends a program's wait in ``signal.pause()``.
    """
    pairs = [(rank, RankAnswer(rank.rank, rank.pid, condition=_condition(rank))) for rank in ranks]
    probed = [
        (rank, record) for rank, record in pairs if rank.ring and record.condition in ("alive", "blocked")
    ]
    query = str(time.monotonic_ns())  # the monotonic clock is the same in all processes of this host
    queried = [(rank, record) for rank, record in probed if rank.ring and queries.send(rank.ring, query)]
    wait_for(queried, lambda pair: _take_answer(*pair, query), ANSWER_SECONDS)
    answered = [pair for pair in queried if pair[1].origin]
    wait_for(answered, lambda pair: _take_recorder(*pair, query), COLLECTIVES_SECONDS)
    with_pipe = {rank.rank for rank, _ in queried}
    _from_outside([pair for pair in probed if pair[0].rank not in with_pipe])
    _by_signal([pair for pair in _silent(probed) if interrupt or pair[0].rank in with_pipe])
    for rank, record in queried:
        if record.origin == "signal":
            # The probe's thread received the query. If its answer arrives late, no call holds the rank's
            # interpreter lock.
            record.locked_out = not _take_answer(rank, record, query)
    _from_outside(_silent(pairs))
    _look(pairs)
    return [record for _, record in pairs]


def wait_for(
    waiting: Iterable[_Waiting], is_done: Callable[[_Waiting], object], patience: float
) -> list[_Waiting]:
    """Check all items until they are done or `patience` seconds have passed. Return the unfinished items."""
    waiting, end = list(waiting), time.monotonic() + patience
    while (waiting := [item for item in waiting if not is_done(item)]) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)
    return waiting


def _condition(rank: LocalRank) -> Condition:
    return "ended" if rank.ended else processes.condition(rank.pid)


def _silent(pairs: _Pairs) -> _Pairs:
    return [(rank, record) for rank, record in pairs if not record.origin]


def _take_answer(rank: LocalRank, record: RankAnswer, query: str) -> bool:
    """Record the answer from the rank's own probe, which contains the threads and counters of the rank."""
    answer = queries.answer(rank.ring, query) if rank.ring else None
    if answer is None:
        return False
    record.threads, record.origin = from_probe(answer), "probe"
    counters = answer.get("counters")
    if isinstance(counters, dict):
        record.counters, record.saves = _numbers(counters), _numbers(counters.get("saves"))
        steps = record.counters.get("steps", 0.0)
        record.step = int(steps) if 0 < steps < LARGEST else None
    return True


def _take_recorder(rank: LocalRank, record: RankAnswer, query: str) -> bool:
    """Record the content of the flight recorder, which arrives after the stacks."""
    answer = queries.answer(rank.ring, query, COLLECTIVES) if rank.ring else None
    if answer is not None:
        record.recorded = read_recorder(answer)
    return answer is not None


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {str(name): float(value) for name, value in found.items() if isinstance(value, (int, float))}


def _by_signal(pairs: _Pairs) -> None:
    dumps = [(queries.FaultDump(rank.ring, rank.pid), record) for rank, record in pairs if rank.ring]

    def take(dumped: tuple[queries.FaultDump, RankAnswer]) -> bool:
        dump, record = dumped
        text = dump.text()
        if text:
            record.threads, record.origin = from_faulthandler(text), "signal"
        return bool(text)

    wait_for([(dump, record) for dump, record in dumps if dump.sent], take, SIGNAL_SECONDS)


def _from_outside(pairs: _Pairs) -> None:
    program = find_py_spy()
    if program is None:
        return
    left = [(rank, record) for rank, record in pairs if record.condition != "ended"]
    ranks = iter(left)  # shared by the threads, so that a stalled py-spy delays no other rank

    def spy() -> None:
        for rank, record in ranks:
            threads = spied(program, rank.pid, SPY_SECONDS)
            if threads:
                record.threads, record.origin = threads, "py-spy"

    # Do not use an executor, because it waits for its threads at exit, and py-spy might be impossible to
    # kill.
    count = min(len(left), _SPIES)
    spies = [threading.Thread(target=spy, name="stallwatch py-spy", daemon=True) for _ in range(count)]
    for each in spies:
        each.start()
    for each in spies:
        each.join()


def _look(pairs: _Pairs) -> None:
    """Add the kernel's information about each rank, such as whether it is blocked or waits for a lock.

    Call this function last, so that a rank that was blocked only briefly has time to continue.
    """
    holders = processes.lock_holders()
    names = {rank.pid: f"rank {rank.rank} (PID {rank.pid})" for rank, _ in pairs}
    for rank, record in pairs:
        now = _condition(rank)
        # Waiting briefly for a disk does not count as blocked, so both checks must find the rank blocked.
        record.condition = "alive" if now == "blocked" != record.condition else now
        silent = record.condition == "alive" and not any(thread.frames for thread in record.threads)
        if silent and rank.ring is not None and queries.has_left(rank.ring):
            record.condition = "ended"  # the program has ended, but its process is still shutting down
        if record.condition == "ended":
            record.left = rank.ring is not None and queries.has_left(rank.ring, well=True)
        else:
            record.kernel = processes.kernel_place(rank.pid)
            record.transferred = processes.transferred(rank.pid)
            record.reads_input = processes.reads_input(rank.pid)
            record.processor = processes.processor_seconds(rank.pid)
            kind = activity_of_rank(record).kind
            if kind == "process":
                record.children = processes.children_seconds(rank.pid)
                record.children_transferred = processes.children_transferred(rank.pid)
            elif kind == "data":
                record.worker, record.worker_frames = busy_worker(rank.pid, WORKERS_SECONDS)
            holder = holders.get(rank.pid)
            record.lock_holder = names.get(holder, f"PID {holder}") if holder else ""
