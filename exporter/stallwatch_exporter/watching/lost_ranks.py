"""Ranks whose process is gone while others go on, and their incidents, reported before the stall follows.

One that said that it ends well may be right to: a run's last ranks save, merge or upload. It is reported if
the run is known to have steps left, or the others go on making some, and as a warning. Of any other, such as
a rank that the kernel killed, only the end of the whole run is an excuse. Nothing is reported twice: while
the run is stalled, the stall's evidence names who is gone, and an error that a rank printed is an incident of
its own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from stallwatch_exporter.incident import RANK_GONE, Severity
from stallwatch_exporter.watching.incidents import IncidentManager
from stallwatch_rules.endings import GONE_ON, MemoryKnown
from stallwatch_rules.judgements.conclusions import LEFT_EARLY
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.text.digest import fold_ranks

#: At the end of a run its ranks leave one after the other, and a launcher that sees one die ends the others,
#: or starts all anew: none of that takes longer. The alert for Prometheus follows the incident at once.
GONE_SECONDS = 15.0


class LostRank(msgspec.Struct, frozen=True):
    """A rank that is gone."""

    rank: int
    since: float  #: Unix seconds
    step: int | None = None  #: the last one that it told of
    well: bool = False  #: it said that it leaves without an error
    badly: bool = False  #: it said that it leaves with one
    behind: int = 0  #: steps that others made since it said so
    code: int | None = None  #: its exit code, -n for signal n, where that was seen


class LostRanks:
    """Hand it which processes of which ranks are up, at every look.

    A rank is missed where a process goes on that was up beside it. So none is that left before the others
    came (a script that prepares something under a rank's number), nor one that a launcher goes on without,
    having started the others anew; nor one whose process we cannot see, as it was never seen.

    Once any rank has stepped, only ranks that have can go on. A launcher may have a number of its own, that
    of its pod (Kubeflow's PyTorchJob), and waits for the other hosts when its ranks are gone.
    """

    def __init__(self) -> None:
        self.missed: dict[int, float] = {}  #: since when, by rank; while nobody is there, as it was last
        self._beside: dict[int, frozenset[Path]] = {}  # by rank: the others, when it was seen last
        self._since: dict[int, float] = {}

    def look(
        self,
        up: Mapping[int, frozenset[Path]],
        stepped: Collection[int],
        leaving: Collection[int],
        now: float,
    ) -> None:
        """The rings of all known ranks whose process is up; which ranks ever stepped, and which end now."""
        everybody = frozenset[Path]().union(*up.values())
        working = stepped or up
        staying = frozenset[Path]().union(
            *(rings for rank, rings in up.items() if rank in working and rank not in leaving)
        )
        for rank, rings in up.items():
            if rings:
                self._beside[rank] = everybody - rings
                self._since.pop(rank, None)
            elif staying & self._beside.get(rank, frozenset()):
                self._since.setdefault(rank, now)
            elif staying:
                self._since.pop(rank, None)
        if staying:
            self.missed = {rank: since for rank, since in sorted(self._since.items()) if _long(since, now)}


def _long(since: float, now: float) -> bool:
    return not 0 <= now - since < GONE_SECONDS  # a clock that was set back is no reason to wait


_LAST_PHASES = ("save", "idle")
_ERROR_SECONDS = 45.0  # an exception that no rule knows is told once the log is silent for 30 seconds
_BEFORE_SECONDS = 10.0  # so long before the end of its process a rank may have printed what ended it


class LostRankAlarms:
    """Opens and resolves these incidents in the run's `book`: one for each way in which ranks end."""

    def __init__(self, book: IncidentManager) -> None:
        self.told: set[str] = set()  #: rules of those that are open
        self._book = book

    def look(
        self,
        gone: Sequence[LostRank],
        tracker: ProgressTracker,
        now: float,
        *,
        held: bool,
        memory: Callable[[], MemoryKnown | None] = lambda: None,
    ) -> None:
        """Ranks that are missed now; `held`: a stall names them, or the end of the run will.

        `memory` is asked where one may have been killed for want of it.
        """
        if not gone and not self.told:
            return
        step, total = tracker.last_step, tracker.total_steps
        over = tracker.told_finished or (step is not None and total is not None and step >= total)
        lost = [one for one in gone if not one.well]
        note = message(_of(lost, "gone"), ranks=_named(lost)) + _how_they_ended(lost)
        known = memory() if any(not one.badly for one in lost) else None
        if known is not None and known.counted:
            note = note + message("diagnosis.gone-counted")
        news = not (held or over) and any(self._is_news(one, now) for one in lost)
        self._tell(RANK_GONE, "critical", lost, note, tracker, now, news=news)
        early = [one for one in gone if one.well and one.step is not None]
        first = min((one.step for one in early if one.step is not None), default=0)
        if total is None:
            note = message(_of(early, "gone-behind"), ranks=_named(early), step=first)
        else:
            note = message(_of(early, "gone-early"), ranks=_named(early), step=first, total=total)
        left_over = total is not None and tracker.phase not in _LAST_PHASES
        news = not (held or over) and (left_over or any(one.behind >= GONE_ON for one in early))
        self._tell(LEFT_EARLY, "warning", early, note, tracker, now, news=news)

    def _is_news(self, one: LostRank, now: float) -> bool:
        """Whether nothing tells of its end yet, and nothing will."""
        if one.badly and 0 <= now - one.since < _ERROR_SECONDS:
            return False
        failed = (each for each in self._book.of_kind("finding") if each.severity == "critical")
        return not any(each.opened_at >= one.since - _BEFORE_SECONDS for each in failed)

    def _tell(
        self,
        rule: str,
        severity: Severity,
        ranks: Sequence[LostRank],
        note: Message,
        tracker: ProgressTracker,
        now: float,
        *,
        news: bool,
    ) -> None:
        incident = self._book.get("finding", rule) if rule in self.told else None
        if incident is None:
            self.told.discard(rule)
            if ranks and news:
                self.told.add(rule)
                self._book.open(
                    "finding",
                    rule,
                    severity,
                    now,
                    harm="fatal" if severity == "critical" else "by-progress",
                    rank=ranks[0].rank,
                    step=ranks[0].step,
                    total_steps=tracker.total_steps,
                    phase=tracker.phase,
                    count=len(ranks),
                    note=note,
                )
        elif ranks:
            self._book.update(incident, now, note=note, count=len(ranks))
        else:
            self.told.discard(rule)
            self._book.resolve(incident, now, "recovered", step=tracker.last_step)


def _of(ranks: Sequence[LostRank], how: str) -> str:
    """The key of the sentence for one, or for several."""
    return f"diagnosis.ranks-{how}" if len(ranks) > 1 else f"diagnosis.rank-{how}"


def _how_they_ended(ranks: Sequence[LostRank]) -> Text:
    """With which exit code, or by which signal, where that is the same for all."""
    codes = {one.code for one in ranks}
    code = codes.pop() if len(codes) == 1 else None
    if not code:
        return ""
    if code > 0:
        return message("diagnosis.gone-with-code", code=code)
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return message("diagnosis.gone-by-signal", signal=signal.Signals(-code).name)
    return message("diagnosis.gone-by-signal", signal=-code)


def _named(ranks: Sequence[LostRank]) -> str:
    return fold_ranks(one.rank for one in ranks)
