"""What findings explain in this run beside their pages' lists."""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import NOT_A_NUMBER, TRACE_CACHE
from stallwatch_rules.diagnosis.signals import SIGTERM
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.judgements.conclusions import DIVERGENCE, STANDSTILLS, STEP_TIME


def explanations(run: Snapshot, now: Assessment) -> None:
    """Say what a stall, a slowdown or a process that failed by itself explains beside its page's list.

    Example: a silent hang explains the ``DUE TO TIME LIMIT`` that ended it.
    """
    by_itself = any(stream.summary.failed_by_itself for stream in run.streams.values())
    symptoms = [one.rule for one in now.found if one.role in ("symptom", "wrapper")]
    for one in now.found:
        if not one.hits and one.harm == "fatal" and one.rule in STANDSTILLS:  # a judged one
            others = (rule for rule in symptoms if rule != one.rule)
            one.explains = [*others, STEP_TIME, TRACE_CACHE, *now.ends]
        if one.rule == DIVERGENCE:
            one.explains = [*NOT_A_NUMBER]
        if one.role == "wrapper" and by_itself:
            one.explains = [SIGTERM]
        if one.rule == TRACE_CACHE and one.judged:
            if one.harm == "fatal":
                one.explains = [*symptoms, STEP_TIME]
            elif one.harm == "degrading":
                one.explains = [STEP_TIME]
