"""Assess runs that stopped without an error: in an evaluation, in a collective, or after a rank ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from stallwatch_rules.endings import GONE_ON, ExitedRank
from stallwatch_rules.failures.flight import START_UP
from stallwatch_rules.judgements.facts import Judgement, RunFacts
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.progress.threshold import Limits, limit_of_steps
from stallwatch_rules.text.digest import some_ranks, span_of_steps

LATE = 10.0  #: maximum time without a step, in seconds, that is normal before a manual stop


def judge_evaluation(facts: RunFacts) -> Judgement | None:
    """Assess a run that stalls in an evaluation: no step has been completed since the evaluation began."""
    if facts.phase != "eval" or not facts.is_stalled:
        return None
    if facts.timed_out:
        return Judgement("fatal", message("diagnosis.stands-in-evaluation-by-timeout"))
    if facts.silence is None:
        return Judgement("fatal", message("diagnosis.stands-in-evaluation-by-watch"))
    return Judgement("fatal", message("diagnosis.stands-in-evaluation", **facts.lengths))


def judge_moe(facts: RunFacts, *, experts: bool, witness: bool) -> Judgement | None:
    """Assess a ZeRO-3 run whose ranks might wait for each other because they ran different modules.

    Ranks that run different modules, such as different experts, gather different parameters. `experts` is
    True if the log mentions experts or shows this difference. `witness` is True if the log shows this
    difference or a changed order of modules.
    """
    if not (experts and witness and facts.is_stalled):
        return None
    return Judgement("fatal", message("diagnosis.moe-stands"))


def judge_peer_to_peer(facts: RunFacts, *, direct: bool, first_work: int | None) -> Judgement | None:
    """Assess a run that stalls in its first collectives because peer-to-peer transfers between GPUs fail.

    `direct` is True if NCCL chose peer-to-peer transfers, or if the kernel reported an error about them.
    `first_work` is the number of the collective that timed out.
    """
    if not direct or facts.advances or not facts.is_stalled:
        return None
    if facts.timed_out and (first_work is None or first_work > START_UP):
        return None
    return Judgement("fatal", message("diagnosis.p2p-stands"))


def judge_silence(facts: RunFacts) -> Judgement | None:
    """Assess a run that printed steps and then printed no step for longer than its pace explains."""
    if facts.complete or not facts.stalled:
        return None
    if facts.silence is None:
        return Judgement("fatal", message("diagnosis.silent-placed") + message("diagnosis.nothing-says-why"))
    if facts.ended:
        how = "aborted" if facts.aborted else "ended"
        return Judgement("fatal", message(f"diagnosis.silent-then-{how}", **facts.lengths))
    note = message("diagnosis.silent", **facts.lengths) + message("diagnosis.nothing-says-why")
    return Judgement("fatal", note)


def note_on_silence(facts: RunFacts, exception: str) -> Message:
    """Return the note on a silent hang after an exception that training survived for a while."""
    return message("diagnosis.silent-beside", **facts.lengths, exception=exception)


def note_on_manual_stop(silence: float | None, durations: Sequence[float], paces: Sequence[float]) -> Text:
    """If a run might have stalled before a user stopped it, return a note. Otherwise, return an empty string.

    The note requires that no step was completed for much longer than usual. `durations` contains the
    seconds between signs of a step, and `paces` contains the seconds that steps took. If both are empty,
    the usual time is unknown, and the result is an empty string.
    """
    usual = paces or durations
    if silence is None or not usual or not stopped_late(silence, durations):
        return ""
    return message("diagnosis.stopped-late", silence=silence, usual=median(usual))


def stopped_late(silence: float | None, durations: Sequence[float]) -> bool:
    """Return whether no step was completed for much longer than usual before a user stopped a run.

    `durations` contains the seconds between signs of a step.
    """
    return silence is not None and silence > limit_of_steps(durations, Limits(floor=LATE))


def judge_left(left: Sequence[ExitedRank], facts: RunFacts) -> Judgement | None:
    """Assess ranks that exited early, while other ranks stalled, failed, or continued without them.

    If the run ended well, `left` must contain only the ranks without which the run continued.
    """
    if ranks_run_continued_without(left, facts):
        who = some_ranks({process.rank for process in left if process.rank is not None})
        step = span_of_steps([process.step for process in left if process.step is not None])
        more = max(process.behind for process in left)
        return Judgement("degrading", message("diagnosis.left-behind", who=who, step=step, more=more))
    if not left or facts.complete or facts.failed_otherwise:
        return None
    if not (facts.stalled or facts.timed_out or facts.lost):
        return None
    return Judgement("fatal", departures_sentence(left, stepped=facts.advances > 0))


def ranks_run_continued_without(left: Sequence[ExitedRank], facts: RunFacts) -> list[ExitedRank]:
    """If a run ended well, return the ranks that exited long before its end."""
    return [process for process in left if process.behind >= GONE_ON] if facts.ended_well else []


def with_steps(left: Sequence[ExitedRank], steps: Mapping[int | None, int]) -> list[ExitedRank]:
    """Return the processes with their last steps. Unknown steps are taken from `steps`."""
    return [
        process
        if process.step is not None or process.rank is None
        else msgspec.structs.replace(process, step=steps.get(process.rank))
        for process in left
    ]


def departures_sentence(left: Sequence[ExitedRank], *, stepped: bool) -> Message:
    """Return a sentence such as ``Rank 2 exited without an error at step 40, …``.

    `stepped` is True if the log shows steps.
    """
    ranks = sorted({process.rank for process in left if process.rank is not None})
    steps = [process.step for process in left if process.step is not None]
    subject = some_ranks(ranks) if ranks else message("diagnosis.left-somebody")
    key = "left-early" if steps else "left-early-somewhere" if stepped else "left-early-no-step"
    return message(f"diagnosis.{key}", who=subject, step=span_of_steps(steps))
