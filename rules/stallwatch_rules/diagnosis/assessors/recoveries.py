"""Failures that training survived, and slowdowns that ended it after all."""

from __future__ import annotations

import math

from stallwatch_rules.diagnosis.afterwards import answers_after
from stallwatch_rules.diagnosis.findings import NOT_A_NUMBER, Found, Streams
from stallwatch_rules.diagnosis.helpers import told_in_passing
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.judgements.loss import finite_losses
from stallwatch_rules.judgements.loss_scale import CALIBRATION
from stallwatch_rules.judgements.recovery import judge_recovery, judge_service
from stallwatch_rules.messages import message

FORGOTTEN = 20  #: good steps, and good losses printed, after which a single NaN is history
OFTEN = 0.05  #: matches a step above which a failure that training survives still does harm


def recoveries(run: Snapshot, now: Assessment) -> None:
    """Take the harm from failures that training survived: an out-of-memory error, and 300 steps after it.

    Example: ``torch.OutOfMemoryError`` at step 5, then steps 6 to 300: harmless.
    """
    streams, facts = run.streams, now.facts
    for one in now.found:
        if one.harm not in ("fatal", "degrading") or one.role == "notice":
            continue
        often = facts.advances > 0 and one.count >= 3 and one.count / facts.advances > OFTEN
        # A gradient that is not finite is how fp16 finds its scale; a loss is never.
        often = often or (one.rule == NOT_A_NUMBER[0] and _remembered(one, streams))
        often = often or (one.rule == NOT_A_NUMBER[1] and _never_a_number(one, streams))
        if one.rule == NOT_A_NUMBER[1] and _calibrating(one):
            one.harm, one.note = "harmless", message("diagnosis.overflow-start", count=one.count)
            continue
        if one.tagged("exit-status") and one.followed:  # of whatever ended before the training, or beside it
            one.harm, one.note = "harmless", message("diagnosis.recovered", steps=one.followed)
            continue
        if told_in_passing(one):
            one.harm, one.note = "harmless", message("diagnosis.maybe-caught")
            continue
        if one.rule == NOT_A_NUMBER[0] and _no_number_since(one, streams):
            continue  # steps that follow mend no weights
        judgement = judge_recovery(one.followed, often, facts)
        judgement = judgement or judge_service(_answered(one, streams), facts)
        if judgement is not None:
            one.harm, one.note = judgement.harm, judgement.note


def raised(run: Snapshot, now: Assessment) -> None:
    """Make fatal what mostly only slows a run down, but was raised here, and nothing survived it.

    Example: ``RuntimeError: Function 'LogSoftmaxBackward0' returned nan values``, then no step: fatal.
    """
    if run.question.failed is False:
        return
    for one in now.found:
        if one.harm == one.page.harm == "degrading" and one.rule in now.exceptions.ended_in:
            one.harm = "fatal"


def _answered(one: Found, streams: Streams) -> int:
    """Answers of an inference server that followed the last match, in the stream where the fewest did."""
    return min((answers_after(key, hits.answers, streams) for key, hits in one.hits.items()), default=0)


def _remembered(one: Found, streams: Streams) -> bool:
    """Whether a loss that was not finite is news still, in steps or in the losses that were printed.

    Many steps may lie between two printed losses: one good value after the bad one is little comfort.
    """
    if one.followed < FORGOTTEN:
        return True
    for key, hits in one.hits.items():
        stream = streams[key]
        curve = stream.curves.main
        losses = [point.mark for point in finite_losses(curve.points)] if curve is not None else []
        if curve is None or not losses:
            continue
        if sum(mark > hits.mark for mark in losses) < FORGOTTEN:
            return True
        whole = not stream.templates.partial  # else the matches are counted, and the losses are not
        if whole and hits.count >= 3 and hits.count / curve.seen > OFTEN:
            return True
    return False


def _no_number_since(one: Found, streams: Streams) -> bool:
    """Whether no finite loss was printed after those that were not, in any stream that printed them."""
    for key, hits in one.hits.items():
        curve = streams[key].curves.main
        if curve is None or any(point.mark > hits.mark for point in finite_losses(curve.points)):
            return False
    return True


def _never_a_number(one: Found, streams: Streams) -> bool:
    """Whether each gradient norm that a run printed was NaN: steps that came after did not mend it."""
    for key in one.hits:
        curve = streams[key].curves.main
        points = curve.points if curve is not None else []
        norms = [point.grad_norm for point in points if point.grad_norm is not None]
        if len(norms) >= 2 and all(math.isnan(norm) for norm in norms):
            return True
    return False


def _calibrating(one: Found) -> bool:
    """Whether infinite (not NaN) gradients came in a run's first steps only: fp16 finds its scale."""
    for hits in one.hits.values():
        texts = " ".join(hits.exemplars).lower()
        step = hits.last_own_step
        if step is None or step > CALIBRATION or "nan" in texts or "inf" not in texts:
            return False
    return bool(one.hits)
