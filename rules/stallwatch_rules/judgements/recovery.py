"""Failures that training survived."""

from __future__ import annotations

from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import message
from stallwatch_rules.records import Harm

RECOVERED = 3  #: so many further steps show that something did not end the run
RECOVERED_BUT_DIED = 10  #: the same where the run is known to have failed: its output may be out of order

SERVED = 5  #: so many further answers show that something did not end an inference server
SERVED_BUT_DIED = 20  #: the same where the run is known to have failed: what was begun may be answered still


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
