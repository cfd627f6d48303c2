"""Define the inputs and results of assessments, and assess failures after which training continued."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.timeline import Interval
from stallwatch_rules.records import Harm, Phase

RECOVERED = 3  #: minimum number of later steps that show that a failure did not end the run
#: The corresponding number of steps in a run that is known to have failed. It is higher because the
#: output of such a run might be out of order.
RECOVERED_BUT_DIED = 10

SERVED = 5  #: minimum number of later answers that show that an inference server survived a failure
#: The corresponding number of answers in a run that is known to have failed. It is higher because the
#: server might have answered pending requests.
SERVED_BUT_DIED = 20


class RunFacts(msgspec.Struct, frozen=True):
    """The facts of a run on which assessments depend."""

    advances: int = 0  #: number of observed steps
    complete: bool = False  #: True if the run reached its last step or printed that it finished
    silence: float | None = None  #: seconds without a step at the end, or ``None`` if there are no timestamps
    threshold: float = 1800.0  #: minimum time in seconds without a step that counts as a stall
    stalled: bool = False  #: True if the run is stalled, according to a live watcher or to ``silence``
    timed_out: bool = False  #: True if the log ends with a collective's timeout or an abort, not with a step
    failed_otherwise: bool = False  #: True if a different cause is known to have ended the run
    lost: bool = False  #: True if some ranks waited for other ranks until a timeout or lost other ranks
    ended_well: bool = False  #: True if the watcher reports that the run ended well
    died: bool = False  #: True if the launcher or the exit code shows that the run failed
    phase: Phase = "train"  #: the last phase of the run
    ended: bool = False  #: True if the log shows that the run was stalled until something ended it
    aborted: bool = False  #: True if the watcher ended the stalled run
    last_sign: float | None = None  #: time of the last step, according to the log's clock
    #: True if the awaited rank is known from its stack or from a log that contains no timeout.
    missed: bool = False

    @property
    def waited(self) -> float:
        """The number of seconds without a step, for the report of a stall.

        A live watcher can count more seconds than the log shows. Therefore, the result for a stalled run
        is at least the threshold.
        """
        return max(self.silence or 0.0, self.threshold if self.stalled else 0.0)

    @property
    def lengths(self) -> dict[str, float]:
        """The time without a step and the threshold, as the parameters of messages about a stall."""
        return {"silence": self.waited, "threshold": self.threshold}

    @property
    def is_stalled(self) -> bool:
        """True if the run is stalled, or was stalled until a timeout, and no other reason is known."""
        return (self.stalled or self.timed_out) and not self.complete and not self.failed_otherwise


class Judgement(msgspec.Struct, frozen=True):
    """The impact of a finding, with the evidence for it."""

    harm: Harm
    note: Text
    mark: int | None = None  #: number of completed steps at which the problem began, if known


class Trace(msgspec.Struct, frozen=True):
    """The number of matches of one rule in each interval between two steps of a run."""

    intervals: Sequence[tuple[Interval, int]]  #: intervals between steps, each with its number of matches
    tail: int  #: number of matches after the last step
    counted: int = 0  #: number of all matches, if the intervals do not contain every match

    @property
    def count(self) -> int:
        """The number of all matches."""
        return max(self.counted, self.tail + sum(hits for _, hits in self.intervals))

    @property
    def steps(self) -> int:
        """The number of observed steps."""
        return sum(interval.span for interval, _ in self.intervals)

    @property
    def first(self) -> int | None:
        """The index of the first interval that contains a match."""
        return next((i for i, (_, hits) in enumerate(self.intervals) if hits), None)

    @property
    def after_first(self) -> int:
        """The number of steps after the first match."""
        first = self.first
        return 0 if first is None else sum(interval.span for interval, _ in self.intervals[first:])

    @property
    def after_last(self) -> int:
        """The number of steps after the last match, including the step in which the match occurred."""
        if self.tail:
            return 0
        count = 0
        for interval, hits in reversed(self.intervals):
            count += interval.span
            if hits:
                return count
        return count

    def rate(self, start: int, end: int) -> float:
        """Return the number of matches per step in the intervals from `start` to `end` (exclusive)."""
        part = self.intervals[start:end]
        steps = sum(interval.span for interval, _ in part)
        return sum(hits for _, hits in part) / steps if steps else 0.0


def is_accompanied(trace: Trace, other: Trace) -> bool:
    """Return whether, for every match of a rule, the other rule matched in the same step or an adjacent step.

    The two rules can match in different lines of a step, before or after the line with the step number.
    """
    by_step = {interval.step: hits for interval, hits in other.intervals}
    steps = [interval.step for interval, _ in trace.intervals]
    there = [bool(by_step.get(step)) for step in steps]
    there.append(other.tail > 0)
    hits = [*(hits for _, hits in trace.intervals), trace.tail]
    near = (any(there[max(0, at - 1) : at + 2]) for at in range(len(there)))
    return None not in steps and all(found for found, count in zip(near, hits, strict=True) if count)


def judge_recovery(
    followed: int, still_there: bool, facts: RunFacts, count: int = 1, *, survived_before: bool = False
) -> Judgement | None:
    """Assess a failure after which training continued, based on the number of steps after its last match.

    One step is enough if training had taken steps before the match and then reached its last step, or if it
    survived earlier matches (`survived_before`). In other cases, one step is weak evidence, because a program
    that ends with an exception draws its progress bar once more.
    """
    enough = survived_before or (facts.complete and facts.advances > followed)
    needed = RECOVERED_BUT_DIED if facts.died else 1 if enough else RECOVERED
    if followed < needed:
        return None
    harm: Harm = "degrading" if still_there else "harmless"
    return Judgement(harm, recovered(followed, count))


def recovered(followed: int, count: int) -> Message:
    """Return the note on a failure that training survived.

    A report shows the first of `count` matches. Therefore, the note states that the counted steps came
    after the last match.
    """
    return message("diagnosis.recovered-last" if count > 1 else "diagnosis.recovered", steps=followed)


def judge_service(answered: int, facts: RunFacts) -> Judgement | None:
    """Assess a failed request to an inference server that later answered other requests."""
    if not continued_to_serve(answered, died=facts.died):
        return None
    return Judgement("harmless", message("diagnosis.served", answers=answered))


def continued_to_serve(answered: int, *, died: bool) -> bool:
    """Return whether a server answered enough requests after a failure to show that it survived."""
    return answered >= (SERVED_BUT_DIED if died else SERVED)
