"""Assess overflows in fp16 training, which are harmless at the start but can be fatal later."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from stallwatch_rules.judgements.facts import RECOVERED, Judgement, RunFacts, Trace
from stallwatch_rules.messages import message

CALIBRATION = 20  #: number of steps at the start in which dynamic loss scaling finds its scale
OVERFLOWS_IN_A_ROW = 4
NEARLY_ALL = 0.9  #: share of skipped steps above which the run does not train


class ScaleFacts(msgspec.Struct, frozen=True):
    """The state of dynamic loss scaling, as shown in the log."""

    lowest: float | None = None  #: the lowest scale at which a step overflowed
    skipped: float | None = None  #: the trainer's own count of skipped steps
    steps: int | None = None  #: the step at which ``skipped`` was printed
    good: int | None = None  #: number of finite steps between the last overflow and a step with NaN


def judge_overflow(trace: Trace, scale: ScaleFacts, facts: RunFacts) -> Judgement:
    """Assess overflows in fp16 training, based on their number and the steps at which they occurred."""
    count = sum(hits for _, hits in trace.intervals) + trace.tail
    good = trace.after_last - 1 if not trace.tail else 0
    if scale.good is not None:
        good = min(good, scale.good)
    if scale.lowest is not None and scale.lowest <= 1 and good < RECOVERED:
        return Judgement("fatal", message("diagnosis.scale-at-minimum"))
    row = _row_at_end(trace)
    if row >= OVERFLOWS_IN_A_ROW and _begun_at(trace) > CALIBRATION:
        return Judgement("fatal", message("diagnosis.overflow-in-a-row", row=row))
    share = count / trace.steps if trace.steps else 0.0
    if scale.skipped is not None and scale.steps:
        share = min(share, scale.skipped / scale.steps) if share else scale.skipped / scale.steps
    if trace.steps > 2 * CALIBRATION and share > 0.5 and good < RECOVERED:
        return Judgement("fatal", message("diagnosis.overflow-mostly", share=f"{share:.0%}"))
    if trace.steps > 2 * CALIBRATION and share > 0.1:
        return Judgement("degrading", message("diagnosis.overflow-often", share=f"{share:.0%}"))
    if scale.good is not None and scale.good < RECOVERED:
        return Judgement("degrading", message("diagnosis.overflow-then-nan", count=count))
    if good >= RECOVERED or (scale.steps or 0) > CALIBRATION or facts.complete:
        return Judgement("harmless", message("diagnosis.overflow-rare", count=count))
    if _begun_at(trace) <= CALIBRATION and row < CALIBRATION:
        return Judgement("harmless", message("diagnosis.overflow-start", count=count))
    return Judgement("by-progress", message("diagnosis.no-steps"))


def _row_at_end(trace: Trace) -> int:
    """Return the number of consecutive steps with an overflow up to the last step."""
    row = 1 if trace.tail else 0
    for interval, hits in reversed(trace.intervals):
        if not hits:
            if row or trace.tail:
                break
            if interval is trace.intervals[-1][0]:
                continue  # the current step has not ended
            break
        row += min(interval.span, hits)
    return row


def _begun_at(trace: Trace) -> int:
    """Return the step before the last series of consecutive overflows."""
    numbered = [interval.step for interval, _ in trace.intervals if interval.step is not None]
    last = numbered[-1] if numbered else trace.steps
    return last - _row_at_end(trace)


def judge_skipped(
    first: tuple[float, int] | None, last: tuple[float, int] | None, losses: Sequence[float], facts: RunFacts
) -> Judgement | None:
    """Assess a run that skipped nearly all of its steps.

    `first` and `last` are the first and the last count of skipped steps that the engine printed, each
    with its step. This assessment is for logs that show these counts but no overflows. A falling loss shows
    that steps are applied.
    """
    if first is None or last is None or last[0] > last[1] or first[0] > first[1]:
        return None
    skipped, steps = last[0] - first[0], last[1] - first[1]
    if steps <= 2 * CALIBRATION or skipped < NEARLY_ALL * steps or _fell(losses):
        return None
    note = message("diagnosis.overflow-mostly", share=f"{min(1.0, skipped / steps):.0%}")
    return Judgement("degrading" if facts.complete else "fatal", note)


def _fell(losses: Sequence[float]) -> bool:
    """Return whether the losses fell from the first to the last third, by more than their usual variation."""
    third = len(losses) // 3
    if not third:
        return False
    before, now = median(losses[:third]), median(losses[-third:])
    usual = median(abs(loss - before) for loss in losses[:third])
    return now < min(NEARLY_ALL * before, before - usual)


def judge_falling_scale(
    scales: Sequence[float | None], facts: RunFacts, *, excerpt: bool = False
) -> Judgement | None:
    """Assess a loss scale that falls repeatedly, in logs that show the scale but no overflows.

    `excerpt` is True if the log begins in mid-run, when the scale is already calibrated.
    """
    known = [scale for scale in scales if scale is not None]
    row = 0
    for earlier, later in zip(reversed(known[:-1]), reversed(known[1:]), strict=True):
        if later > earlier / 2:
            break
        row += 1
    begins = len(known) - row <= CALIBRATION and not excerpt
    if row < OVERFLOWS_IN_A_ROW or begins or facts.complete:
        return None
    return Judgement("fatal", message("diagnosis.scale-falling", count=row, scale=f"{known[-1]:g}"))
