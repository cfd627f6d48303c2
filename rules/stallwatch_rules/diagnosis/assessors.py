"""The assessors of a diagnosis, in one table: each adds findings to an assessment, or annotates them.

An assessor is a function of the snapshot and of what the assessors before it found. It gets a copy of that
and edits it, so none can change what another one was given, and what each of them contributed is the
difference between the two (``stallwatch diagnose --explain``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch_rules.diagnosis.asked import graceful_shutdown
from stallwatch_rules.diagnosis.caught import judge_caught
from stallwatch_rules.diagnosis.endings import (
    SIGTERM,
    abort_at_exit,
    aftermath,
    came_before,
    kills,
    known_ending,
    signals,
    terminations,
)
from stallwatch_rules.diagnosis.exceptions import INTERRUPTED, SURVIVED
from stallwatch_rules.diagnosis.findings import (
    NOT_A_NUMBER,
    TRACE_CACHE,
    Found,
    ends_in_timeout,
    judge_by_progress,
    judge_recoveries,
)
from stallwatch_rules.diagnosis.firstend import first_failure
from stallwatch_rules.diagnosis.kills import memory
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.stood import is_end, stall_ends
from stallwatch_rules.judgements.concerns import judge_concerns
from stallwatch_rules.judgements.conclusions import (
    DIVERGENCE,
    ENDED_BY_SIGNAL,
    STANDSTILLS,
    STEP_TIME,
    Run,
    conclude_rules,
)
from stallwatch_rules.messages import message
from stallwatch_rules.records import Contribution, FindingChange

FAR = 500  #: lines after which a failure is not what the log ended with
NUMERICS = "numerics"  #: the family of failures that no exit code shows
SCHEDULER = "scheduler-and-process"  #: the family of what follows when somebody ends a run
_OWN_WORK = frozenset(("data", "rlhf-and-rollout"))  # families of what a rank does by itself

Assess = Callable[[Snapshot, Assessment], None]


class Assessor(NamedTuple):
    """One row of the table."""

    name: str
    after: tuple[str, ...]  #: the assessors whose results it uses
    assess: Assess


def recoveries(run: Snapshot, now: Assessment) -> None:
    """Take the harm from failures that training survived: an out-of-memory error, and 300 steps after it."""
    judge_recoveries(now.found, run.streams, now.facts)


def raised(run: Snapshot, now: Assessment) -> None:
    """Make fatal what mostly only slows a run down, but was raised here, and nothing survived it."""
    if run.question.failed is False:
        return
    for one in now.found:
        if one.harm == one.page.harm == "degrading" and one.rule in now.exceptions.ended_in:
            one.harm = "fatal"


def excuses(run: Snapshot, now: Assessment) -> None:
    """Take the harm from what follows when a run is stopped by hand, or when the command ended well.

    Ranks that are interrupted one after the other lose each other, and say so: where the interrupt came
    first, that is a symptom of nothing else. Where the interrupt is known to have ended the run, even what
    would be a cause elsewhere is none after it.
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


def concerns(run: Snapshot, now: Assessment) -> None:
    """Judge what only the probe warned of, such as a model that computes gradients in evaluation mode."""
    judge_concerns(now.found, ended_well=run.question.failed is False)


def handled_exceptions(run: Snapshot, now: Assessment) -> None:
    """Judge failures that programs often handle: a request that timed out, and was sent again."""
    judge_caught(now.found, now.exceptions, now.facts, run.question, by_hand=run.by_hand)


def end(run: Snapshot, now: Assessment) -> None:
    """Conclude how the log ends: in a timeout of a collective, or in a failure of a rank's own."""
    if run.clock.ended:
        now.ends = {one.rule for one in now.found if is_end(one)}
    found = [one for one in now.found if one.rule not in now.ends]
    own = [one for one in found if one.harm == "fatal" and (one.role == "cause" or _is_of_own_work(one))]
    timed_out = ends_in_timeout(found) or now.exceptions.timed_out
    other = any(not seen.timed_out for seen in now.exceptions.fatal)
    lost = timed_out or any(one.harm == "fatal" and one.role == "symptom" for one in found)
    failed_otherwise = bool(own) or (other and not timed_out)
    now.facts = replace(now.facts, lost=lost, timed_out=timed_out, failed_otherwise=failed_otherwise)


def progress(run: Snapshot, now: Assessment) -> None:
    """Judge rules by the steps around them: trace-cache messages while the loss stops moving."""
    judge_by_progress(now.found, run.streams, now.facts)


def conclusions(run: Snapshot, now: Assessment) -> None:
    """Add what no line says: a silent hang, steps that became slower, a loss that ran away."""
    question = run.question
    if question.stalled and question.kind != "oom-killed":
        now.ends |= ENDED_BY_SIGNAL
    live = question.now is not None
    conclude_rules(
        Run(
            now.found,
            run.streams,
            run.catalogue,
            run.tracker,
            run.clock,
            now.facts,
            now.exceptions,
            live,
            run.left,
            run.left_line,
            now.ends,
        )
    )


def distance(run: Snapshot, now: Assessment) -> None:
    """Doubt what stands far from the end of its log: it did not end the run, as far as the log shows."""
    for one in now.found:
        after = [run.streams[key].index - 1 - hits.last_index for key, hits in one.hits.items()]
        if after and not run.died and min(after) > FAR:
            one.facts.add("long-before-the-end")


def explanations(run: Snapshot, now: Assessment) -> None:
    """Say what a stall, a slowdown or a process that failed by itself explains beside its page's list."""
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


def _is_of_own_work(one: Found) -> bool:
    """Whether a symptom is of what a rank does by itself: no standstill of the others brings it about."""
    return one.role == "symptom" and one.page.family in _OWN_WORK and "timeout" not in one.rule


#: In the order in which they are asked.
ASSESSORS: tuple[Assessor, ...] = (
    Assessor("recoveries", (), recoveries),
    Assessor("raised", ("recoveries",), raised),
    Assessor("excuses", ("raised",), excuses),
    Assessor("concerns", ("excuses",), concerns),
    Assessor("known-ending", (), known_ending),
    Assessor("handled-exceptions", ("excuses", "known-ending"), handled_exceptions),
    Assessor("end", ("excuses", "handled-exceptions"), end),
    Assessor("progress", ("end",), progress),
    Assessor("conclusions", ("end", "progress"), conclusions),
    Assessor("stall-ends", ("conclusions",), stall_ends),
    Assessor("signals", ("conclusions", "stall-ends"), signals),
    Assessor("terminations", ("signals",), terminations),
    Assessor("kills", ("signals",), kills),
    Assessor("memory", ("kills",), memory),
    Assessor("aftermath", ("memory",), aftermath),
    Assessor("first-failure", ("aftermath",), first_failure),
    Assessor("abort-at-exit", ("first-failure",), abort_at_exit),
    Assessor("graceful-shutdown", ("abort-at-exit",), graceful_shutdown),
    Assessor("distance", ("graceful-shutdown",), distance),
    Assessor("explanations", ("end", "conclusions", "graceful-shutdown"), explanations),
)


def assess(
    run: Snapshot, first: Assessment, assessors: Sequence[Assessor] = ASSESSORS
) -> tuple[Assessment, list[Contribution]]:
    """Ask the assessors in turn; return what they found together, and what each of them contributed."""
    contributions = [Contribution("matches", changes_of([], first.found))]
    now = first
    for assessor in assessors:
        after = now.copy()
        assessor.assess(run, after)
        changes = changes_of(now.found, after.found)
        if changes:
            contributions.append(Contribution(assessor.name, changes))
        now = after
    return now, contributions


def changes_of(before: Sequence[Found], after: Sequence[Found]) -> list[FindingChange]:
    """What a reader sees of the difference: findings that are new or gone, another harm, role or note."""
    known = {one.rule: one for one in before}
    changes = []
    for one in after:
        old = known.pop(one.rule, None)
        if old is None:
            changes.append(FindingChange(one.rule, None, one.harm, None, one.role, one.note))
        elif (old.harm, old.role, old.note) != (one.harm, one.role, one.note):
            note = one.note if one.note != old.note else ""
            changes.append(FindingChange(one.rule, old.harm, one.harm, old.role, one.role, note))
    changes += [FindingChange(old.rule, old.harm, None, old.role, None) for old in known.values()]
    return changes
