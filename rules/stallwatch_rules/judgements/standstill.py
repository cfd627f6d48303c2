"""Standstills that have a name: in an evaluation, of a mixture of experts, in the first collectives."""

from __future__ import annotations

from stallwatch_rules.failures.flight import START_UP
from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import message
from stallwatch_rules.text.digest import short_duration


def stands(facts: RunFacts) -> bool:
    """Whether the run stands, or stood until a timeout ended it, and nothing else is known to be why."""
    return (facts.stalled or facts.timed_out) and not facts.complete and not facts.failed_otherwise


def judge_evaluation(facts: RunFacts) -> Judgement | None:
    """A run whose last sign of life is an evaluation that does not end."""
    if facts.phase != "eval" or not stands(facts):
        return None
    if facts.timed_out:
        return Judgement("fatal", message("diagnosis.stands-in-evaluation-by-timeout"))
    if facts.silence is None:
        return Judgement("fatal", message("diagnosis.stands-in-evaluation-by-watch"))
    silence, threshold = short_duration(facts.waited), short_duration(facts.threshold)
    return Judgement("fatal", message("diagnosis.stands-in-evaluation", silence=silence, threshold=threshold))


def judge_moe(facts: RunFacts, *, experts: bool, witness: bool) -> Judgement | None:
    """ZeRO-3 ranks whose experts differ gather different parameters, and wait for each other for ever.

    ``witness``: the order of modules was seen to change, or ranks that gather different parameters.
    """
    if not (experts and witness and stands(facts)):
        return None
    return Judgement("fatal", message("diagnosis.moe-stands"))


def judge_peer_to_peer(facts: RunFacts, *, direct: bool, first_work: int | None) -> Judgement | None:
    """GPUs that are told to talk directly and cannot: no step, and the first collectives never end.

    ``direct``: NCCL chose peer-to-peer, or the kernel complained of it. ``first_work``: the number of the
    collective that timed out.
    """
    if not direct or facts.advances or not stands(facts):
        return None
    if facts.timed_out and (first_work is None or first_work > START_UP):
        return None
    return Judgement("fatal", message("diagnosis.p2p-stands"))
