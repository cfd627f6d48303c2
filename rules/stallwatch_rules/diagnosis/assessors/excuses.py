"""What follows when a run is stopped by hand, or when the command ended well."""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import INTERRUPTED, SURVIVED
from stallwatch_rules.diagnosis.findings import came_before
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.messages import message

NUMERICS = "numerics"  #: the family of failures that no exit code shows
SCHEDULER = "scheduler-and-process"  #: the family of what follows when somebody ends a run


def excuses(run: Snapshot, now: Assessment) -> None:
    """Take the harm from what follows when a run is stopped by hand, or when the command ended well.

    Ranks that are interrupted one after the other lose each other, and say so: where the interrupt came
    first, that is a symptom of nothing else. Where the interrupt is known to have ended the run, even what
    would be a cause elsewhere is none after it.

    Example: ``Watchdog caught collective operation timeout``, then exit code 0: harmless.
    """
    question = run.question
    interrupt = next((one for one in now.found if one.rule == INTERRUPTED and one.followed < SURVIVED), None)
    for one in now.fatal():
        aftermath = one.role == "wrapper" or (one.role != "cause" and one.page.family == SCHEDULER)
        told = one.role == "symptom" or one.tagged("interrupted-with-rank") or question.kind == "interrupted"
        if interrupt is not None and told:
            aftermath = aftermath or came_before(interrupt, one)
        if run.by_hand and aftermath:
            one.harm, one.note = "harmless", message("diagnosis.stopped-by-hand")
        elif question.failed is False and one.page.family != NUMERICS:
            one.harm, one.note = "harmless", message("diagnosis.ended-well")
    if question.failed is False:
        now.exceptions.excuse_all()
    elif run.by_hand:
        now.exceptions.excuse_interrupted()
