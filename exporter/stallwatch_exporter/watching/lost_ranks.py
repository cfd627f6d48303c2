"""Detect ranks that end while other ranks continue, and report them before a stall follows.

In a normal run, a rank can end without an error while the last ranks still save, merge, or upload. Such an
end is reported (as a warning) only if the run is known to have steps left, or if the other ranks complete
further steps. Any other lost rank, such as a rank that the kernel killed, is reported unless the whole run
ends. Nothing is reported twice, because the evidence of a stall names the missing ranks, and an error that a
rank printed has its own incident.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stallwatch_exporter.incident import RANK_GONE, Severity
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.watching.incidents import IncidentManager
from stallwatch_rules.endings import GONE_ON, ExitedRank, MemoryUse, signal_name
from stallwatch_rules.judgements.conclusions import LEFT_EARLY
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.stream import NO_CODES
from stallwatch_rules.text.digest import fold_ranks

#: Seconds for which a rank must be missing before it is reported. Within this time, all ranks of a run
#: normally end, or a launcher ends or restarts the other ranks. The Prometheus alert adds no further
#: delay.
GONE_SECONDS = 15.0

Processes = Mapping[int, frozenset[Path]]  #: running processes of each known rank, identified by their rings
NO_RANKS: Processes = {}


class LostRank(msgspec.Struct, frozen=True):
    """Rank whose process has ended while other ranks continue."""

    rank: int
    since: float  #: time at which the rank was first missing (Unix seconds)
    step: int | None = None  #: last step that the rank reported
    well: bool = False  #: true if the rank reported an end without an error
    badly: bool = False  #: true if the rank reported an end with an error
    behind: int = 0  #: number of steps that other ranks have completed since this rank ended
    code: int | None = None  #: exit code, or -n for signal n, if observed


class RankExits:
    """Use the ranks' reports and the running processes to detect ranks that ended (`left` and `gone`).

    If a rank exits with code 0, its launcher does not end the other ranks. These ranks then wait for the
    ended rank until a timeout.

    A rank is gone if its process has ended and a process that ran at the same time still runs. Therefore, a
    rank is not gone if it ended before the other ranks started. For example, a preparatory script can have
    the number of a rank. A rank is also not gone if its launcher restarted the other ranks and continues
    without this rank, or if its process was never seen. After any rank has completed a step, only ranks that
    have completed steps are considered. The reason is that the Pod of a launcher can have its own rank number
    (PyTorchJob of Kubeflow). Such a launcher also waits for the other hosts when its ranks are gone.
    """

    def __init__(self) -> None:
        self.left: list[ExitedRank] = []  #: ranks that ended without an error before the other ranks
        self.gone: list[LostRank] = []  #: ranks missing for longer than a run takes to end
        self.well: dict[int, float] = {}  #: time at which each rank reported an ending without an error
        self.badly: dict[int, float] = {}  #: time at which each rank reported an ending with an error
        self._steps: dict[int, int] = {}
        self._ended: set[int] = set()  # ranks that ended without an error while other ranks ran
        self._ends: dict[int, list[float]] = {}  # times at which each rank ended in this program
        self._others_then: dict[int, dict[int, int]] = {}  # steps of the other ranks when a rank ended
        self._beside: dict[int, frozenset[Path]] = {}  # other processes that ran when each rank was last seen
        self._down_since: dict[int, float] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        """Record a ``left`` event, which reports that the interpreter of a rank is exiting."""
        rank = event.get("rank")
        if isinstance(rank, int) and rank >= 0:
            ends = self.well if event.get("error") is False else self.badly
            ends[rank] = float(event.get("time", 0.0))
            self._ends.setdefault(rank, []).append(ends[rank])
            self._others_then[rank] = {other: step for other, step in self._steps.items() if other != rank}

    def record(self, record: Record) -> None:
        """Record the step that a rank's record contains."""
        for ended in (self.well, self.badly):
            if record.time > ended.get(record.rank, record.time):  # a launcher restarted the rank
                del ended[record.rank]
        step = record.values.get("step", float("nan"))
        if step == step:
            ended_before = any(at < record.time for at in self._ends.get(record.rank, ()))
            # A record with the same step only repeats the step at the end of the rank.
            if ended_before and int(step) != self._steps.get(record.rank):
                self._forget(record.time)
            self._steps[record.rank] = int(step)
            for left, at in self.well.items():
                others = self._others_then.setdefault(left, {})
                if left != record.rank and (record.time <= at or record.rank not in others):
                    others[record.rank] = int(step)

    def _forget(self, now: float) -> None:
        """Discard the endings of ranks before `now` because they belong to an earlier program."""
        for ended in (self.well, self.badly):
            for rank in [rank for rank, at in ended.items() if at < now]:
                del ended[rank]
        self._ends = {rank: [at for at in ends if at >= now] for rank, ends in self._ends.items()}

    def look(
        self, up: Processes, now: float, codes: Mapping[int, int] = NO_CODES, unprobed: Processes = NO_RANKS
    ) -> None:
        """Record the running ranks (whether or not they have a probe) and the exit codes of ended ranks."""
        for rank in [each for each in self.well if codes.get(each)]:  # for example, after SystemExit(1)
            self.badly[rank] = self.well.pop(rank)
        self._ended &= self.well.keys()
        # The process of a rank can continue for a while after its program has ended.
        if any(rings and rank not in self.well for rank, rings in up.items()):
            self._ended |= self.well.keys()
        left = sorted(self._ended | self._silent(codes))
        self.left = [ExitedRank(rank, self._steps.get(rank), self._behind(rank)) for rank in left]
        missed = self._missed({**unprobed, **up}, now)
        if missed is None:
            missed = {lost_rank.rank: lost_rank.since for lost_rank in self.gone}
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
        """Return the number of steps that other ranks have completed since this rank ended."""
        others = self._others_then.get(rank, {})
        return max((self._steps[other] - step for other, step in others.items()), default=0)

    def _silent(self, codes: Mapping[int, int]) -> set[int]:
        """If any rank failed, return the ranks that exited with code 0 but did not report their end.

        For example, a rank can call ``os._exit(0)``.
        """
        if not self.badly and not any(codes.values()):
            return set()
        ended = {rank for rank, code in codes.items() if code == 0 and rank in self._steps}
        return ended - self.well.keys() - self.badly.keys()

    def _missed(self, up: Processes, now: float) -> dict[int, float] | None:
        """Return the missing ranks, each with the time at which its absence was first noticed.

        Return ``None`` if no rank that is expected to continue is running.
        """
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
_ERROR_SECONDS = 45.0  # an unknown exception is reported after only 30 seconds without output
_BEFORE_SECONDS = 10.0  # maximum number of seconds from a rank's printed cause to the end of its process


class LostRankAlarms:
    """Open and resolve the incidents about lost ranks in `book`, one incident for each kind of ending."""

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
        memory: Callable[[], MemoryUse | None] = lambda: None,
    ) -> None:
        """Report the missing ranks, unless `held` is true because a stall or the run's end reports them."""
        if not gone and not self.reported:
            return
        step, total = tracker.last_step, tracker.total_steps
        over = tracker.shows_finish or (step is not None and total is not None and step >= total)
        lost = [lost_rank for lost_rank in gone if not lost_rank.well]
        note = message(_message_id(lost, "gone"), ranks=_named(lost)) + _how_they_ended(lost)
        known = memory() if any(not lost_rank.badly for lost_rank in lost) else None
        if known is not None and known.counted:
            note = note + message("diagnosis.gone-counted")
        news = not (held or over) and any(self._is_news(lost_rank, now) for lost_rank in lost)
        self._notify(RANK_GONE, "critical", lost, note, tracker, now, news=news)
        early = [lost_rank for lost_rank in gone if lost_rank.well and lost_rank.step is not None]
        first = min((lost_rank.step for lost_rank in early if lost_rank.step is not None), default=0)
        if total is None:
            note = message(_message_id(early, "gone-behind"), ranks=_named(early), step=first)
        else:
            note = message(_message_id(early, "gone-early"), ranks=_named(early), step=first, total=total)
        left_over = total is not None and tracker.phase not in _LAST_PHASES
        news = not (held or over) and (left_over or any(lost_rank.behind >= GONE_ON for lost_rank in early))
        self._notify(LEFT_EARLY, "warning", early, note, tracker, now, news=news)

    def _is_news(self, lost: LostRank, now: float) -> bool:
        """Return whether no other incident reports the end of this rank or is about to report it."""
        if lost.badly and now - lost.since < _ERROR_SECONDS:
            return False
        failed = (each for each in self._book.of_kind("finding") if each.severity == "critical")
        return not any(each.opened_at >= lost.since - _BEFORE_SECONDS for each in failed)

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


def _message_id(ranks: Sequence[LostRank], how: str) -> str:
    """Return the ID of the message for one rank or for several ranks."""
    return f"diagnosis.ranks-{how}" if len(ranks) > 1 else f"diagnosis.rank-{how}"


def _how_they_ended(ranks: Sequence[LostRank]) -> Text:
    """If the exit code or signal is the same for all ranks, return it as text."""
    codes = {lost_rank.code for lost_rank in ranks}
    code = codes.pop() if len(codes) == 1 else None
    if not code:
        return ""
    if code > 0:
        return message("diagnosis.gone-with-code", code=code)
    return message("diagnosis.gone-by-signal", signal=signal_name(code) or -code)


def _named(ranks: Sequence[LostRank]) -> str:
    return fold_ranks(lost_rank.rank for lost_rank in ranks)
