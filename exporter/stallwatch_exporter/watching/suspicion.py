"""Take stack snapshots of a quiet run before reporting a stall: schedule the snapshots and combine them.

The first snapshot is due at a third of the learned threshold, so that a result exists when the threshold is
exceeded. The table in ``stallwatch_rules.stacks.quiet_periods`` evaluates the snapshots. This module stores
the times of snapshots and the call sites of long waits.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.evidence import Evidence, LookResult
from stallwatch_exporter.watching.stall import StallState, StallWatch
from stallwatch_rules.progress.threshold import PATIENCE
from stallwatch_rules.stacks.quiet_periods import HostSnapshot, QuietPeriod, Ruling, ruling
from stallwatch_rules.stacks.records import StallStacks

EVIDENCE_SECONDS = 2.0  #: maximum wait, in seconds, for a snapshot's result before a stall is reported
_FIRST, _SECOND, _LAST = 1 / 3, 2 / 3, 0.93  # fractions of the threshold at which snapshots are due
_AGAIN = 1 / 6  # interval between later snapshots as a share of the floor (at least 1/20 of the quiet time)
_COMPARED = 8  # number of the newest snapshots that a ruling compares
_MOST_SITES = 1000


class Suspicion:
    """Take snapshots of the ranks when snapshots are due. Pass the resulting ruling to the stall watch."""

    def __init__(self, settings: ExporterSettings, watch: StallWatch, evidence: Evidence) -> None:
        self.ruling: Ruling | None = None  #: ruling on the current quiet period
        self.own_ruling: Ruling | None = None  #: ruling from the snapshots of this host alone
        self.stacks: StallStacks | None = None  #: stacks of the newest snapshot
        self.seen: tuple[StallStacks, float] | None = None  #: newest snapshot with stacks, and its time
        self.unanswered = ""  #: reason why no rank could be queried in the newest snapshot
        self.run_ruling: Callable[[], Ruling | None] = lambda: None  #: returns the ruling of all hosts
        self._settings = settings
        self._watch = watch
        self._evidence = evidence
        self._spell = watch.spell  # number of the quiet period that is examined
        self._looks: list[HostSnapshot] = []
        self._looked_at: float | None = None  # start time of this quiet period's newest snapshot
        self._worked = 0.0  # seconds from the start of this period to the newest snapshot with work
        self._sites: dict[str, float] = {}  # longest quiet time that ended by itself, by call site

    def look(self, now: float, *, progressed: bool, repeating: Callable[[], bool]) -> None:
        """If a snapshot of the ranks is due, take the snapshot. Call this method at every tick.

        `repeating` returns whether a known message repeats.
        """
        state = self._watch.check(now, begin=False)
        if self._watch.spell != self._spell:
            self._begin()
        found = self._evidence.take()
        if found is not None:
            self._judge(found, state, now, repeating)
        elif self._due(state) and not self._evidence.under_way and self._evidence.possible:
            self._looked_at = now
            self._evidence.look(progressed=progressed)
        if self.ruling is None and self._quick(state) and repeating():
            self._watch.rule(self._watch.suspicion, "stalled")

    @property
    def stacks_now(self) -> StallStacks | None:
        """Stacks of the newest snapshot in the current quiet period, or ``None`` if there is none."""
        return self.seen[0] if self.seen is not None and self._spell == self._watch.spell else None

    def pending(self, now: float) -> bool:
        """Return whether a stall at `now` must wait for a snapshot in progress."""
        began = self._looked_at
        return self._evidence.under_way and began is not None and now - began < EVIDENCE_SECONDS

    def _quick(self, state: StallState) -> bool:
        """Return whether the run might be about to stall in training, regardless of the stacks."""
        near = state.seconds >= _LAST * self._watch.suspicion
        return near and state.phase == "train" and self._watch.rhythm_known

    def _due(self, state: StallState) -> bool:
        suspicion, quiet = self._watch.suspicion, state.seconds
        if self._looked_at is None:
            return quiet >= _FIRST * suspicion
        before = self._looked_at - state.since
        planned = [share * suspicion for share in (_SECOND, _LAST) if share * suspicion > before]
        again = before + max(_AGAIN * self._settings.stall_floor_seconds, quiet / 20)
        return quiet >= min([*planned, again]) if before >= _LAST * suspicion else quiet >= planned[0]

    def _begin(self) -> None:
        """Handle the end of a quiet period. Learn how long waits at the period's call site can last."""
        over, self._watch.over = self._watch.over, None
        if over is not None and self.ruling is not None and self.ruling.site:
            # If a stall ended by itself, the next stall at the same call site is reported after 1.5 times
            # the duration of the first stall.
            most = self._settings.stall_start_seconds / self._settings.stall_factor
            length = over.seconds if not over.stalled else min(over.seconds / 2, most)
            known = self._sites.pop(self.ruling.site, 0.0)
            self._sites[self.ruling.site] = max(known, length)
            while len(self._sites) > _MOST_SITES:
                del self._sites[next(iter(self._sites))]
        self._spell, self._looked_at, self._looks = self._watch.spell, None, []
        self._worked = 0.0
        self.ruling = self.own_ruling = self.stacks = self.seen = None
        self.unanswered = ""
        self._evidence.drop(reported=over is not None and over.stalled)

    def _judge(self, found: LookResult, state: StallState, now: float, repeating: Callable[[], bool]) -> None:
        self.unanswered = found.unanswered
        if not found.answers:
            return
        if found.stacks is not None:
            self.seen = found.stacks, self._looked_at or now
        reported = self.stacks if state.stalled else None
        if reported is None or (found.stacks is not None and found.stacks.odd and not reported.odd):
            self.stacks = found.stacks  # A reported stall keeps its stacks. Later stacks might show its end.
        newest = HostSnapshot(self._looked_at or now, found.answers)
        self._looks = [*self._looks[1 - _COMPARED :], newest]
        start = self._settings.stall_start_seconds
        spell = QuietPeriod(
            phase=state.phase,
            floor=self._settings.stall_floor_seconds,
            suspicion=self._watch.suspicion,
            factor=self._settings.stall_factor,
            rollout=start * PATIENCE["rollout"],
            rhythm_known=self._watch.rhythm_known,
            longest=self._watch.known_quiet,
            sites=self._sites,
            repeating=repeating(),
            suspended=found.suspended,
            only_reached_total=self._watch.only_reached_total,
            worked=self._worked,
            run=self.run_ruling(),
        )
        judged = ruling(self._looks, spell)
        if judged is None:
            return
        # Report only this host's own observation to the run. Otherwise, the run's ruling would confirm itself
        # and never end.
        alone = msgspec.structs.replace(spell, run=None)
        self.own_ruling = judged if judged is not spell.run else ruling(self._looks, alone)
        self._watch.sighted = True
        if judged.status == "alive":
            self._watch.observe(self._looked_at or now, state.phase)
            looks, self.ruling = self._looks, None  # keep the snapshots because the wait continues
            self._begin()
            self._looks = looks[-1:]  # the next snapshot is compared with this snapshot
            return
        if state.stalled and judged.status != "stalled":
            return  # only a sign of life ends a reported stall
        self.ruling = judged
        if judged.reason == "work":
            self._worked = newest.time - state.since
        for group in self.stacks.groups if self.stacks is not None else ():
            group.busy = judged.status == "busy" and judged.rank in group.ranks
        self._watch.rule(judged.limit, judged.status, usual=judged.usual(spell))
