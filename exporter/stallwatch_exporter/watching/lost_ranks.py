"""Ranks that end while others continue, and their incidents, reported before the stall follows.

A rank that reported a good end may be right: a run's last ranks save, merge or upload. It is an incident (a
warning) if the run is known to have steps left, or the others continue to make some. Of any other, such as a
rank that the kernel killed, only the end of the whole run is an excuse. Nothing is reported twice: while the
run is stalled, the stall's evidence names the missing ranks, and an error that a rank printed is an incident
of its own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallwatch_exporter.incident import RANK_GONE, Severity
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.incidents import IncidentManager
from stallwatch_rules.endings import GONE_ON, Left, MemoryKnown
from stallwatch_rules.judgements.conclusions import LEFT_EARLY
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.stream import NO_CODES
from stallwatch_rules.text.digest import fold_ranks

#: At the end of a run its ranks leave one after another, and a launcher that sees one die ends the others,
#: or restarts all: none of that takes longer. The alert for Prometheus follows the incident at once.
GONE_SECONDS = 15.0

Processes = Mapping[int, frozenset[Path]]  #: running processes of each known rank, by their rings
NO_RANKS: Processes = {}


class LostRank(msgspec.Struct, frozen=True):
    """A rank that is gone."""

    rank: int
    since: float  #: Unix seconds
    step: int | None = None  #: the last step that it reported
    well: bool = False  #: it reported that it leaves without an error
    badly: bool = False  #: it reported that it leaves with one
    behind: int = 0  #: steps that others made since that report
    code: int | None = None  #: its exit code, -n for signal n, if observed


class RankExits:
    """Ranks that ended, by their reports and by the running processes: `left` and `gone`.

    A launcher that sees an exit code other than 0 ends all ranks. If a rank leaves with 0, no process reports
    that, and the others wait for it until a timeout.

    A rank is gone if a process continues that was up beside it. So a rank is not gone if it left before the
    others started (a script that prepares something under a rank's number), if its launcher continues without
    it after restarting the others, or if we never saw its process. Once any rank has stepped, only ranks that
    have can continue: a launcher may have a number of its own, that of its pod (Kubeflow's PyTorchJob), and
    waits for the other hosts when its ranks are gone.
    """

    def __init__(self) -> None:
        self.left: list[Left] = []  #: ranks that ended by themselves, without an error, before the others
        self.gone: list[LostRank] = []  #: gone for too long for an end of the run; the last ones if all are
        self.well: dict[int, float] = {}  #: when each rank reported that it leaves without an error
        self.badly: dict[int, float] = {}  #: … with an error
        self._steps: dict[int, int] = {}
        self._ended: set[int] = set()  # ranks that left well while others were running that had not
        self._ends: dict[int, list[float]] = {}  # when each rank left, while no other program steps
        self._others_then: dict[int, dict[int, int]] = {}  # by rank that left: the others' steps at that time
        self._beside: dict[int, frozenset[Path]] = {}  # by rank: the others, when it was last seen
        self._down_since: dict[int, float] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Take a ``left`` event: the interpreter of a rank ends."""
        rank = event.get("rank")
        if isinstance(rank, int) and rank >= 0:
            of_its_kind = self.well if event.get("error") is False else self.badly
            of_its_kind[rank] = float(event.get("time", 0.0))
            self._ends.setdefault(rank, []).append(of_its_kind[rank])
            self._others_then[rank] = {other: step for other, step in self._steps.items() if other != rank}

    def record(self, record: Record) -> None:
        """Take a record: a rank is at some step."""
        for ended in (self.well, self.badly):
            if record.time > ended.get(record.rank, record.time):  # a launcher restarted it
                del ended[record.rank]
        step = record.values.get("step", float("nan"))
        if step == step:
            ended_before = any(at < record.time for at in self._ends.get(record.rank, ()))
            if ended_before and int(step) != self._steps.get(record.rank):  # not a count by its own end
                self._forget(record.time)
            self._steps[record.rank] = int(step)
            for left, at in self.well.items():
                others = self._others_then.setdefault(left, {})
                if left != record.rank and (record.time <= at or record.rank not in others):
                    others[record.rank] = int(step)

    def _forget(self, now: float) -> None:
        """Forget the ranks of the previous program: another one trains now, perhaps with fewer ranks."""
        for ended in (self.well, self.badly):
            for rank in [rank for rank, at in ended.items() if at < now]:
                del ended[rank]
        self._ends = {rank: [at for at in ends if at >= now] for rank, ends in self._ends.items()}

    def look(
        self, up: Processes, now: float, codes: Mapping[int, int] = NO_CODES, unprobed: Processes = NO_RANKS
    ) -> None:
        """Record which ranks are running, with and without a probe, and the exit codes of the others.

        A bare ``raise SystemExit(1)`` is no error that the rank itself could know of.
        """
        for rank in [one for one in self.well if codes.get(one)]:
            self.badly[rank] = self.well.pop(rank)
        self._ended &= self.well.keys()
        # Its process may take a while to go, after its program has ended.
        if any(rings and rank not in self.well for rank, rings in up.items()):
            self._ended |= self.well.keys()
        left = sorted(self._ended | self._silent(codes))
        self.left = [Left(rank, self._steps.get(rank), self._behind(rank)) for rank in left]
        missed = self._missed({**unprobed, **up}, now)
        if missed is None:
            missed = {one.rank: one.since for one in self.gone}
        self.gone = [
            LostRank(
                rank,
                since,
                self._steps.get(rank),
                well=rank in self.well,
                badly=rank in self.badly,
                behind=self._behind(rank),
                code=codes.get(rank),
            )
            for rank, since in missed.items()
        ]

    def _behind(self, rank: int) -> int:
        """Return how many steps another rank has made since this one left: each has a count of its own."""
        others = self._others_then.get(rank, {})
        return max((self._steps[other] - step for other, step in others.items()), default=0)

    def _silent(self, codes: Mapping[int, int]) -> set[int]:
        """Return ranks that ended with 0 without reporting it, as by ``os._exit(0)``, if others failed."""
        if not self.badly and not any(codes.values()):
            return set()
        ended = {rank for rank, code in codes.items() if code == 0 and rank in self._steps}
        return ended - self.well.keys() - self.badly.keys()

    def _missed(self, up: Processes, now: float) -> dict[int, float] | None:
        """Return since when ranks are missed; ``None`` if no rank is left to miss them."""
        everybody = frozenset[Path]().union(*up.values())
        working = self._steps or up
        staying = frozenset[Path]().union(
            *(rings for rank, rings in up.items() if rank in working and rank not in self.well)
        )
        for rank, rings in up.items():
            if rings:
                self._beside[rank] = everybody - rings
                self._down_since.pop(rank, None)
            elif staying & self._beside.get(rank, frozenset()):
                self._down_since.setdefault(rank, now)
            elif staying:
                self._down_since.pop(rank, None)
        if not staying:
            return None
        since = sorted(self._down_since.items())
        return {rank: at for rank, at in since if now - at >= GONE_SECONDS}


_LAST_PHASES = ("save", "idle")
_ERROR_SECONDS = 45.0  # an unknown exception is reported once the log is silent for 30 seconds
_BEFORE_SECONDS = 10.0  # a rank may print the cause this long before the end of its process


class LostRankAlarms:
    """Open and resolve these incidents in the run's `book`: one for each way in which ranks end."""

    def __init__(self, book: IncidentManager) -> None:
        self.reported: set[str] = set()  #: rules of the open incidents
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
        """Report the ranks that are missed now; `held`: a stall names them, or the end of the run will.

        `memory` is read if a rank may have been killed for lack of it.
        """
        if not gone and not self.reported:
            return
        step, total = tracker.last_step, tracker.total_steps
        over = tracker.shows_finish or (step is not None and total is not None and step >= total)
        lost = [one for one in gone if not one.well]
        note = message(_of(lost, "gone"), ranks=_named(lost)) + _how_they_ended(lost)
        known = memory() if any(not one.badly for one in lost) else None
        if known is not None and known.counted:
            note = note + message("diagnosis.gone-counted")
        news = not (held or over) and any(self._is_news(one, now) for one in lost)
        self._notify(RANK_GONE, "critical", lost, note, tracker, now, news=news)
        early = [one for one in gone if one.well and one.step is not None]
        first = min((one.step for one in early if one.step is not None), default=0)
        if total is None:
            note = message(_of(early, "gone-behind"), ranks=_named(early), step=first)
        else:
            note = message(_of(early, "gone-early"), ranks=_named(early), step=first, total=total)
        left_over = total is not None and tracker.phase not in _LAST_PHASES
        news = not (held or over) and (left_over or any(one.behind >= GONE_ON for one in early))
        self._notify(LEFT_EARLY, "warning", early, note, tracker, now, news=news)

    def _is_news(self, one: LostRank, now: float) -> bool:
        """Whether nothing reports its end yet, and nothing will."""
        if one.badly and now - one.since < _ERROR_SECONDS:
            return False
        failed = (each for each in self._book.of_kind("finding") if each.severity == "critical")
        return not any(each.opened_at >= one.since - _BEFORE_SECONDS for each in failed)

    def _notify(
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
        incident = self._book.get("finding", rule) if rule in self.reported else None
        if incident is None:
            self.reported.discard(rule)
            if ranks and news:
                self.reported.add(rule)
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
            self.reported.discard(rule)
            self._book.resolve(incident, now, "recovered", step=tracker.last_step)


def _of(ranks: Sequence[LostRank], how: str) -> str:
    """Return the key of the sentence for one rank, or for several."""
    return f"diagnosis.ranks-{how}" if len(ranks) > 1 else f"diagnosis.rank-{how}"


def _how_they_ended(ranks: Sequence[LostRank]) -> Text:
    """Return the exit code or signal of the ranks, if it is the same for all."""
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
