"""What deserves an incident of ranks that are gone while others go on: told before the stall that follows.

One that said that it ends well may be right to: a run's last ranks save, merge or upload. It is told where
the run is known to have steps left, or the others go on making some, and as a warning. Of any other, such as
a rank that the kernel killed, only the end of the whole run is an excuse. What is told already is not told
twice: while the run stands, the stall's evidence names who is gone, and an error that a rank printed is an
incident of its own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Sequence

from stallwatch_exporter.incident import RANK_GONE, Severity
from stallwatch_exporter.watching.goneranks import Gone
from stallwatch_exporter.watching.incidents import IncidentBook
from stallwatch_rules.endings import GONE_ON, MemoryKnown
from stallwatch_rules.judgements.conclusions import LEFT_EARLY
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.text.digest import fold_ranks
from stallwatch_rules.text.sentences import say

_LAST_PHASES = ("save", "idle")
_ERROR_SECONDS = 45.0  # an exception that no rule knows is told once the log is silent for 30 seconds
_BEFORE_SECONDS = 10.0  # so long before the end of its process a rank may have printed what ended it


class RankAlarms:
    """Opens and resolves these incidents in the run's `book`: one for each way in which ranks end."""

    def __init__(self, book: IncidentBook) -> None:
        self.told: set[str] = set()  #: rules of those that are open
        self._book = book

    def look(
        self,
        gone: Sequence[Gone],
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
        note = say(_of(lost, "gone"), ranks=_named(lost))
        note += _how_they_ended(lost)
        known = memory() if any(not one.badly for one in lost) else None
        note += f" {say('gone-counted')}" if known is not None and known.counted else ""
        news = not (held or over) and any(self._is_news(one, now) for one in lost)
        self._tell(RANK_GONE, "critical", lost, note, tracker, now, news=news)
        early = [one for one in gone if one.well and one.step is not None]
        first = min((one.step for one in early if one.step is not None), default=0)
        how = "gone-behind" if total is None else "gone-early"
        note = say(_of(early, how), ranks=_named(early), step=first, total=total)
        left_over = total is not None and tracker.phase not in _LAST_PHASES
        news = not (held or over) and (left_over or any(one.behind >= GONE_ON for one in early))
        self._tell(LEFT_EARLY, "warning", early, note, tracker, now, news=news)

    def _is_news(self, one: Gone, now: float) -> bool:
        """Whether nothing tells of its end yet, and nothing will."""
        if one.badly and 0 <= now - one.since < _ERROR_SECONDS:
            return False
        failed = (each for each in self._book.of_kind("finding") if each.severity == "critical")
        return not any(each.opened_at >= one.since - _BEFORE_SECONDS for each in failed)

    def _tell(
        self,
        rule: str,
        severity: Severity,
        ranks: Sequence[Gone],
        note: str,
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


def _of(ranks: Sequence[Gone], how: str) -> str:
    """The key of the sentence for one, or for several."""
    return f"ranks-{how}" if len(ranks) > 1 else f"rank-{how}"


def _how_they_ended(ranks: Sequence[Gone]) -> str:
    """With which exit code, or by which signal, where that is the same for all."""
    codes = {one.code for one in ranks}
    code = codes.pop() if len(codes) == 1 else None
    if not code:
        return ""
    if code > 0:
        return f" {say('gone-with-code', code=code)}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return f" {say('gone-by-signal', signal=signal.Signals(-code).name)}"
    return f" {say('gone-by-signal', signal=-code)}"


def _named(ranks: Sequence[Gone]) -> str:
    return fold_ranks(one.rank for one in ranks)
