"""Workers that a launcher started again after a failure: what follows is the whole run's, all ranks'."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stallwatch_rules.records import Line


class Restart(msgspec.Struct, frozen=True):
    """Workers that were started again, as one source shows it."""

    line: Line  #: the launcher's last word before
    local_ranks: tuple[int, ...]  #: of the workers that failed, on their node
    step: int | None  #: the run's last step before
    followed: int  #: steps after


def next_restart(line: Line, restarts: Iterable[Restart]) -> Restart | None:
    """The first restart that came after a line, told in the same source."""
    later = (one for one in restarts if one.line.source == line.source and one.line.number >= line.number)
    return min(later, key=lambda one: one.line.number, default=None)
