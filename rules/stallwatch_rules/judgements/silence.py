"""A run that stands without a word."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.threshold import Limits, limit_of_steps
from stallwatch_rules.text.digest import short_duration

LATE = 10.0  #: seconds without a step that are no news where somebody stops a run


def judge_silence(facts: RunFacts) -> Judgement | None:
    """A hang without a message: steps, then nothing for longer than the run's own rhythm allows."""
    if facts.complete or not facts.stalled:
        return None
    if facts.silence is None:
        return Judgement("fatal", message("diagnosis.silent-placed") + message("diagnosis.nothing-says-why"))
    times = {"silence": short_duration(facts.waited), "threshold": short_duration(facts.threshold)}
    if facts.ended:
        return Judgement("fatal", message("diagnosis.silent-then-ended", **times))
    return Judgement("fatal", message("diagnosis.silent", **times) + message("diagnosis.nothing-says-why"))


def beside_silence(facts: RunFacts, exception: str) -> Message:
    """The note of a silence before which an exception came that training survived at first."""
    return message(
        "diagnosis.silent-beside",
        silence=short_duration(facts.waited),
        threshold=short_duration(facts.threshold),
        exception=exception,
    )


def stopped_late(silence: float | None, durations: Sequence[float], paces: Sequence[float]) -> Text:
    """That a run which was stopped by hand may have been standing: steps, then none for much longer than one.

    ``durations`` are the seconds from one sign of a step to the next, ``paces`` those that steps took.
    """
    if silence is None or silence <= limit_of_steps(durations, Limits(floor=LATE)):
        return ""
    usual = short_duration(median(paces or durations))
    return message("diagnosis.stopped-late", silence=short_duration(silence), usual=usual)
