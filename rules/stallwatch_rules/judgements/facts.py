"""Facts that judgements are made from, their result, and failures that training survived."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.messages import Text, message
from stallwatch_rules.progress.timeline import Interval
from stallwatch_rules.records import Harm, Phase
from stallwatch_rules.text.digest import short_duration

RECOVERED = 3  #: this many further steps show that a failure did not end the run
RECOVERED_BUT_DIED = 10  #: the same if the run is known to have failed: its output may be out of order

SERVED = 5  #: this many further answers show that a failure did not end an inference server
SERVED_BUT_DIED = 20  #: the same if the run is known to have failed: pending requests may still be answered


class RunFacts(msgspec.Struct, frozen=True):
    """The facts of a run that judgements need."""

    advances: int = 0  #: steps seen
    complete: bool = False  #: it reached its last step, or printed that it finished
    silence: float | None = None  #: seconds without a step at the end, if times show it
    threshold: float = 1800.0  #: seconds without a step that count as a stall in this run
    stalled: bool = False  #: it is stalled, by a live watcher or by the silence
    timed_out: bool = False  #: its log ends in a timeout of a collective, or an abort, before the last step
    failed_otherwise: bool = False  #: another cause is known to have ended it
    lost: bool = False  #: some ranks waited for others until a timeout, or lost them
    ended_well: bool = False  #: the watcher reports so
    died: bool = False  #: its launcher or its exit code shows that it failed
    phase: Phase = "train"  #: its last phase
    ended: bool = False  #: by its log, it was stalled until it was ended
    last_sign: float | None = None  #: time of the last step, by the log's clock
    elsewhere: bool = False  #: stacks showed the awaited rank outside of all collectives

    @property
    def waited(self) -> float:
        """Seconds without a step, as shown for a stall.

        A live watcher and the times in the log do not start to count at the same moment: at a reported stall,
        the log may show slightly less than the threshold.
        """
        return max(self.silence or 0.0, self.threshold if self.stalled else 0.0)

    @property
    def lengths(self) -> dict[str, str]:
        """The time without a step and the threshold, for messages."""
        return {"silence": short_duration(self.waited), "threshold": short_duration(self.threshold)}

    @property
    def is_stalled(self) -> bool:
        """Whether the run is stalled, or stalled until a timeout, with no other known reason."""
        return (self.stalled or self.timed_out) and not self.complete and not self.failed_otherwise


class Judgement(msgspec.Struct, frozen=True):
    """An impact and the evidence for it."""

    harm: Harm
    note: Text


class Trace(msgspec.Struct, frozen=True):
    """How often one rule matched between steps."""

    intervals: Sequence[tuple[Interval, int]]  #: each with the rule's matches in it
    tail: int  #: matches after the last step
    counted: int = 0  #: all matches, if the intervals do not hold each of them

    @property
    def count(self) -> int:
        """Number of all matches."""
        return max(self.counted, self.tail + sum(hits for _, hits in self.intervals))

    @property
    def steps(self) -> int:
        """Number of steps seen."""
        return sum(interval.span for interval, _ in self.intervals)

    @property
    def first(self) -> int | None:
        """Index of the first interval with a match."""
        return next((i for i, (_, hits) in enumerate(self.intervals) if hits), None)

    @property
    def after_first(self) -> int:
        """Number of steps after the first match."""
        first = self.first
        return 0 if first is None else sum(interval.span for interval, _ in self.intervals[first:])

    @property
    def after_last(self) -> int:
        """Number of steps after the last match, including the step that it occurred in."""
        if self.tail:
            return 0
        count = 0
        for interval, hits in reversed(self.intervals):
            count += interval.span
            if hits:
                return count
        return count

    def rate(self, start: int, end: int) -> float:
        """Return the matches per step in a slice of the intervals."""
        part = self.intervals[start:end]
        steps = sum(interval.span for interval, _ in part)
        return sum(hits for _, hits in part) / steps if steps else 0.0


def judge_recovery(followed: int, still_there: bool, facts: RunFacts) -> Judgement | None:
    """Judge a failure that a line reports but that training survived: steps followed its last match.

    One step is enough if training then reached its last step and other steps came before the match: a
    progress bar is drawn once more when its program ends, even by an exception.
    """
    reached = facts.complete and facts.advances > followed
    needed = RECOVERED_BUT_DIED if facts.died else 1 if reached else RECOVERED
    if followed < needed:
        return None
    harm: Harm = "degrading" if still_there else "harmless"
    return Judgement(harm, message("diagnosis.recovered", steps=followed))


def judge_service(answered: int, facts: RunFacts) -> Judgement | None:
    """Judge a failure of one request of an inference server that continued to answer others."""
    if not served_on(answered, died=facts.died):
        return None
    return Judgement("harmless", message("diagnosis.served", answers=answered))


def served_on(answered: int, *, died: bool) -> bool:
    """Whether this number of answers shows that the server continued."""
    return answered >= (SERVED_BUT_DIED if died else SERVED)
