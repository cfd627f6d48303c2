"""A rank that ended, without an error, before the others: they wait for it until a timeout ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallwatch_rules.endings import GONE_ON, Left
from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.locale import render
from stallwatch_rules.messages import Message, message
from stallwatch_rules.records import Line
from stallwatch_rules.text.digest import fold_ranks


def judge_left(left: Sequence[Left], facts: RunFacts) -> Judgement | None:
    """Ranks that left, where the others stand, ended for want of them, or came to the end without them.

    Of a run that ended well, hand it those alone that it went on without.
    """
    if went_on_without(left, facts):
        return Judgement("degrading", _told_of_missed(left))
    if not left or facts.complete or facts.failed_otherwise:
        return None
    if not (facts.stalled or facts.timed_out or facts.lost):
        return None
    return Judgement("fatal", told_of(left, stepped=facts.advances > 0))


def went_on_without(left: Sequence[Left], facts: RunFacts) -> list[Left]:
    """Those without whom a run went on that ended well; the others of it only ended before its last rank."""
    return [one for one in left if one.behind >= GONE_ON] if facts.ended_well else []


def with_steps(left: Sequence[Left], steps: Mapping[int | None, int]) -> list[Left]:
    """The same, with the last steps of ``steps`` (by rank, as a log tells them) where no other is known."""
    return [
        one
        if one.step is not None or one.rank is None
        else msgspec.structs.replace(one, step=steps.get(one.rank))
        for one in left
    ]


def told_of(left: Sequence[Left], *, stepped: bool) -> Message:
    """``Rank 2 left without an error at step 40; …``. ``stepped``: steps of the run were seen."""
    ranks = sorted({one.rank for one in left if one.rank is not None})
    steps = [one.step for one in left if one.step is not None]
    who = f"rank {fold_ranks(ranks)}" if ranks else message("diagnosis.left-somebody")
    key = "left-early" if steps else "left-early-somewhere" if stepped else "left-early-no-step"
    return message(f"diagnosis.{key}", who=who, step=min(steps, default=0))


def _told_of_missed(missed: Sequence[Left]) -> Message:
    """``Rank 2 left without an error at step 40; …``, of a run that ended well."""
    who = f"rank {fold_ranks(sorted({one.rank for one in missed if one.rank is not None}))}"
    step = min((one.step for one in missed if one.step is not None), default=0)
    return message("diagnosis.left-behind", who=who, step=step, more=max(one.behind for one in missed))


def shown_as(left: Sequence[Left], line: Line | None, source: str, facts: RunFacts) -> Line:
    """The line to point to: the launcher's where there is one, else what the rank told of itself."""
    if line is not None:
        return line
    if went_on_without(left, facts):
        return Line(render(_told_of_missed(left)), source, 0, left[0].rank)
    return Line(render(told_of(left, stepped=facts.advances > 0)), source, 0, left[0].rank)
