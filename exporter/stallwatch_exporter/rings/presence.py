"""Whether the process behind a ring is still there."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from stallwatch_exporter.probe.layout import Header

_SAME_PROCESS = 5.0  # the ring is made at the process's first import; clocks tick in hundredths


def ranks_there(headers: Iterable[Header]) -> dict[int, bool]:
    """For each rank whether the process of its newest ring is up; ranks that are not known are left out.

    A launcher that restarts its ranks gives each a new process and so a new ring.
    """
    newest: dict[int, Header] = {}
    for header in headers:
        if header.rank >= 0 and (header.rank not in newest or header.started >= newest[header.rank].started):
            newest[header.rank] = header
    return {rank: _is_up(header) for rank, header in newest.items()}


def _is_up(header: Header) -> bool:
    try:
        process = psutil.Process(header.pid)
        # A number that was given to another process meanwhile is not this one.
        born_before = process.create_time() <= header.started + _SAME_PROCESS
        return born_before and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
