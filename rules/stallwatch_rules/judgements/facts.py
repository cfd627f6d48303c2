"""The facts that judgements are made from, what one says, and which failures training survived."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.messages import Text, message
from stallwatch_rules.progress.timeline import Interval
from stallwatch_rules.records import Harm, Phase
from stallwatch_rules.text.digest import short_duration

RECOVERED = 3  #: so many further steps show that something did not end the run
RECOVERED_BUT_DIED = 10  #: the same where the run is known to have failed: its output may be out of order

SERVED = 5  #: so many further answers show that something did not end an inference server
SERVED_BUT_DIED = 20  #: the same where the run is known to have failed: what was begun may be answered still


class RunFacts(msgspec.Struct, frozen=True):
    """The run as far as judgements need it."""

    advances: int = 0  #: steps seen
    complete: bool = False  #: it reached its last step, or says that it finished
    silence: float | None = None  #: seconds without a step at the end, where times tell
    threshold: float = 1800.0  #: seconds without a step that count as a stall in this run
    stalled: bool = False  #: it stands: told by who watches it live, or by the silence
    timed_out: bool = False  #: its log ends in a timeout of a collective, or an abort, before the last step
    failed_otherwise: bool = False  #: something else is known to have ended it
    lost: bool = False  #: ranks of it waited for others until a timeout, or lost them
    ended_well: bool = False  #: whoever watched it says so
    died: bool = False  #: its launcher or its exit code says that it failed
    phase: Phase = "train"  #: what it was doing last
    ended: bool = False  #: it stood by its log until somebody ended it
    last_sign: float | None = None  #: when the last step was done, by the log's clock
    elsewhere: bool = False  #: stacks showed the rank that the others wait for in none of the collectives

    @property
    def waited(self) -> float:
        """Seconds without a step, as a stall tells them.

        Who watches a run and the times in its log do not begin to count at the same moment: of a stall that
        was raised, a log may know a little less than the threshold.
        """
        return max(self.silence or 0.0, self.threshold if self.stalled else 0.0)

    @property
    def lengths(self) -> dict[str, str]:
        """That time and the threshold, for messages."""
        return {"silence": short_duration(self.waited), "threshold": short_duration(self.threshold)}

    @property
    def stands(self) -> bool:
        """Whether the run stands, or stood until a timeout ended it, and nothing else is known to be why."""
        return (self.stalled or self.timed_out) and not self.complete and not self.failed_otherwise


class Judgement(msgspec.Struct, frozen=True):
    """A harm, and the evidence behind it."""

    harm: Harm
    note: Text


class Trace(msgspec.Struct, frozen=True):
    """How often one rule fired between the steps."""

    intervals: Sequence[tuple[Interval, int]]  #: each with the rule's matches in it
    tail: int  #: matches after the last step
    counted: int = 0  #: all matches, where the intervals do not hold each of them

    @property
    def count(self) -> int:
        """All matches."""
        return max(self.counted, self.tail + sum(hits for _, hits in self.intervals))

    @property
    def steps(self) -> int:
        """Steps seen."""
        return sum(interval.span for interval, _ in self.intervals)

    @property
    def first(self) -> int | None:
        """Index of the first interval with a match."""
        return next((i for i, (_, hits) in enumerate(self.intervals) if hits), None)

    @property
    def after_first(self) -> int:
        """Steps that were done after the first match."""
        first = self.first
        return 0 if first is None else sum(interval.span for interval, _ in self.intervals[first:])

    @property
    def after_last(self) -> int:
        """Steps that were done after the last match; the step it came in counts."""
        if self.tail:
            return 0
        count = 0
        for interval, hits in reversed(self.intervals):
            count += interval.span
            if hits:
                return count
        return count

    def rate(self, start: int, end: int) -> float:
        """Matches per step in a part of the intervals."""
        part = self.intervals[start:end]
        steps = sum(interval.span for interval, _ in part)
        return sum(hits for _, hits in part) / steps if steps else 0.0


def judge_recovery(followed: int, still_there: bool, facts: RunFacts) -> Judgement | None:
    """Whether a failure that a line names was not the end: training went on after its last match.

    One step will do where the training then reached its last one, and others were seen before the match:
    a bar is drawn once more when its program ends, by an exception too.
    """
    reached = facts.complete and facts.advances > followed
    needed = RECOVERED_BUT_DIED if facts.died else 1 if reached else RECOVERED
    if followed < needed:
        return None
    harm: Harm = "degrading" if still_there else "harmless"
    return Judgement(harm, message("diagnosis.recovered", steps=followed))


def judge_service(answered: int, facts: RunFacts) -> Judgement | None:
    """Whether a failure was one request's of an inference server, which went on answering others."""
    if not served_on(answered, died=facts.died):
        return None
    return Judgement("harmless", message("diagnosis.served", answers=answered))


def served_on(answered: int, *, died: bool) -> bool:
    """Whether so many answers show that the server went on."""
    return answered >= (SERVED_BUT_DIED if died else SERVED)
