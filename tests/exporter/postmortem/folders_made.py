"""Folders of a run's logs, made for tests: one file for each rank, with eight ranks on each host.

The lines follow the sources of the libraries: ``[Rank N] Watchdog caught …`` and ``last enqueued work`` are
from torch's ``ProcessGroupNCCL.cpp`` (2.8.0), ``[E1120 …]`` is from c10's logger, torch.OutOfMemoryError is
from ``CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path

BEGUN = datetime(2026, 11, 20, 3)
STEP = timedelta(seconds=3)
LAST = 40  #: last step that all ranks finish
PER_HOST = 8
TIMEOUT = 600
NAME = "n{host}/rank_{rank}.log"

#: returns the last lines of a rank from its number and the time of its last step
End = Callable[[int, datetime], list[str]]


def folder_of(
    to: Path,
    ends: Mapping[int, End],
    *,
    hosts: int = 16,
    usual: End | None = None,
    clocks: Mapping[int, float] | None = None,
    steps: Mapping[int, int] | None = None,
    left_out: Collection[int] = (),
    name: str = NAME,
) -> Path:
    """Write the logs; ``ends`` replaces the usual end of some ranks, a collective that times out.

    ``clocks`` holds the offsets of hosts' clocks in seconds, ``steps`` the last steps of ranks that are
    behind, and hosts in ``left_out`` have no log.
    """
    usual = usual or timed_out()
    for rank in range(hosts * PER_HOST):
        host = rank // PER_HOST
        if host in left_out:
            continue
        ahead = timedelta(seconds=(clocks or {}).get(host, 0.0), milliseconds=rank % 7)
        last = (steps or {}).get(rank, LAST)
        lines = [_step(BEGUN + ahead + step * STEP, rank, step) for step in range(1, last + 1)]
        lines += ends.get(rank, usual)(rank, BEGUN + ahead + LAST * STEP)
        path = to / name.format(host=host, rank=rank, local=rank % PER_HOST)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return to


def _step(at: datetime, rank: int, step: int) -> str:
    return logged(at, rank, f"step={step} loss={2 - step * 0.01:.4f} lr=1.0e-05")


def logged(at: datetime, rank: int, text: str) -> str:
    """Return a line in the format of the trainer's logger."""
    return f"{_stamp(at)} INFO train.py:88 [Rank {rank}] {text}"


def _stamp(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S},{at.microsecond // 1000:03d}"


def timed_out(
    work: int = 93120,
    operation: str = "ALLREDUCE",
    enqueued: int | None = None,
    after: float = TIMEOUT,
) -> End:
    """Return the last lines of a rank whose collective timed out."""

    def end(rank: int, last: datetime) -> list[str]:
        at = last + timedelta(seconds=after)
        logged = f"[rank{rank}]:[E{at:%m%d %H:%M:%S}.{at.microsecond:06d}000 ProcessGroupNCCL.cpp"
        group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        newest = work if enqueued is None else enqueued
        return [
            f"{logged}:632] {group} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work}, "
            f"OpType={operation}, NumelIn=8388608, NumelOut=8388608, Timeout(ms)=600000) ran for 600021 "
            "milliseconds before timing out.",
            f"{logged}:2271] {group} failure detected by watchdog at work sequence id: {work} PG status: "
            f"last enqueued work: {newest}, last completed work: {min(work, newest) - 1}",
        ]

    return end


def out_of_memory(rank: int, last: datetime) -> list[str]:
    """Return the last lines of a rank whose GPU ran out of memory."""
    return [
        "Traceback (most recent call last):",
        '  File "/srv/run/train.py", line 88, in <module>',
        "    train(model, batches)",
        '  File "/srv/run/train.py", line 61, in train',
        "    loss = model(**batch).loss",
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU {rank % PER_HOST} has "
        "a total capacity of 79.15 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process "
        "has 78.10 GiB memory in use. Of the allocated memory 74.20 GiB is allocated by PyTorch, and 2.10 "
        "GiB is reserved by PyTorch but unallocated.",
    ]


def nothing(rank: int, last: datetime) -> list[str]:
    """Return no last lines: the rank's log just ends."""
    return []


def saving(rank: int, last: datetime) -> list[str]:
    """Return the last lines of a rank that does not finish its save."""
    return [f"{_stamp(last)} INFO save.py:41 [Rank {rank}] Saving checkpoint to /mnt/ckpt/step_{LAST}"]


def saved(rank: int, last: datetime) -> list[str]:
    """Return the last lines of a rank that finished its save and waited for the others."""
    done = f"{_stamp(last + timedelta(seconds=21))} INFO save.py:58 [Rank {rank}] Saved checkpoint in 21.0 s"
    return [*saving(rank, last), done, *timed_out(operation="ALLREDUCE", after=TIMEOUT + 21)(rank, last)]
