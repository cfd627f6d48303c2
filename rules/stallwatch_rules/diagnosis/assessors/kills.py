"""A SIGKILL beside what is known of the memory: the kernel for memory, or somebody from outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stallwatch_rules.diagnosis.findings import Found, came_before
from stallwatch_rules.diagnosis.signals import BY_SIGKILL, FROM_OUTSIDE, SIGKILL, tells_of_memory
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.verdict import Question
from stallwatch_rules.endings import MemoryKnown
from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.judgements.conclusions import concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import Message, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.text.lazy import lazy

BY_ITSELF = "ommand was ended by SIGKILL"  #: of an ending's sentence: no launcher's word about its worker
GIB = 2**30
_LOCAL = lazy(r"\(exitcode: -9\) local_rank: (\d{1,6})\b")


def kills(run: Snapshot, now: Assessment) -> None:
    """Weigh a SIGKILL without a word of memory: schedulers send it when SIGTERM is not obeyed.

    Schedulers and launchers send SIGTERM and, when that is not obeyed, SIGKILL: where one of them is known to
    have ended the run, or ranks had given up waiting before, the kill explains nothing. A scheduler that
    cancels after the kill only ends what the kill left.

    Example: ``failed (exitcode: -9) local_rank: 0`` and nothing else: known by its signal only.
    """
    found, question = now.found, run.question
    kill = next((one for one in found if one.rule == SIGKILL and one.hits and one.harm == "fatal"), None)
    if kill is None or question.kind == "oom-killed":
        return
    kill.proof = tells_of_memory(kill)
    if kill.proof:
        return
    kill.facts.add("signal-only")
    for one in found:
        if one.harm != "fatal" or one is kill:
            continue
        ended = one.tagged("ends-from-outside") and not (
            one.tagged("follows-failure") and came_before(kill, one)
        )
        if ended or (one.role == "symptom" and "timeout" in one.rule and came_before(one, kill)):
            one.explains.append(SIGKILL)
            kill.note = kill.note or message("diagnosis.killed-afterwards", rule=one.rule)


def memory(run: Snapshot, now: Assessment) -> None:
    """Weigh a SIGKILL by what was seen of the memory: far from its limit, somebody else sent it.

    Example: ``(exitcode: -9)`` while 12 of 128 GiB were held: process-killed-from-outside.
    """
    found, catalogue, question = now.found, run.catalogue, run.question
    ranks = {rank for _, rank in run.streams if rank is not None}
    summaries = [stream.summary for stream in run.streams.values()]
    memory = question.memory
    kill = next((one for one in found if one.rule == SIGKILL and one.harm == "fatal"), None)
    if kill is None or memory is None or tells_of_memory(kill) or "ending-counted" in kill.facts:
        return
    if any(one.harm == "fatal" and SIGKILL in (*one.explains, *one.page.explains) for one in found):
        return  # it is how the run was ended, and by whom is known
    if memory.counted or question.kind == "oom-killed":
        kill.facts -= {"signal-only", "ending-killed"}
        if question.kind != "oom-killed":  # a kill was counted, perhaps another one
            kill.facts.add("ending-counted")
        kill.note = message("diagnosis.killed-counted")
        return
    held = memory.most / GIB
    # A small process holds 0.011 GiB, and none holds 0.0.
    numbers = {"held": f"{held:.1f}" if held >= 0.1 else f"{held:.2g}", "limit": f"{memory.limit / GIB:.1f}"}
    if memory.speaks == "for":
        kill.facts -= {"signal-only", "ending-killed"}
        kill.facts.add("memory-near-limit")
        kill.note = message("diagnosis.killed-near-limit", **numbers)
    elif memory.speaks in ("far", "against"):
        here = _was_here(kill, question, memory, ranks, summaries)
        if here and memory.speaks == "against" and FROM_OUTSIDE in catalogue.pages:
            _told_from_outside(found, kill, catalogue, message("diagnosis.killed-from-outside", **numbers))
        elif here is not False:
            kill.facts.add("memory-far-from-limit")


def _was_here(
    kill: Found,
    question: Question,
    memory: MemoryKnown,
    ranks: Collection[int],
    summaries: Sequence[LauncherSummary],
) -> bool | None:
    """Whether the process was killed on the machine whose memory was looked at; ``None``: it is not known.

    pdsh, mpirun and srun show the lines of all nodes; their own machine's memory says nothing of the rest.
    """
    if question.kind == "killed" and (BY_ITSELF in question.told or question.crash is not None):
        return True
    killed = {rank for each in summaries for rank, code in each.codes.items() if code in BY_SIGKILL}
    known = set(memory.ranks)
    if known and not known.issuperset((*ranks, *killed)):
        return False
    if any(each.one_node for each in summaries):
        return True
    if not killed:  # torchrun's number of it on its node, which is the first one where it has the same ranks
        texts = [text for hits in kill.hits.values() for text in hits.exemplars]
        numbers = [_LOCAL.search(text) for text in texts]
        killed = {int(number[1]) if number is not None else -1 for number in numbers}
    return True if killed and killed <= known else None


def _told_from_outside(found: list[Found], kill: Found, catalogue: Catalogue, note: Message) -> None:
    """Put the other rule in the place of the kill, with its lines."""
    named = next((one for one in found if one.rule == FROM_OUTSIDE), None)
    found.remove(kill)
    if named is not None:
        named.note = named.note or note
        return
    one = concluded(catalogue.pages[FROM_OUTSIDE], Judgement("fatal", note))
    one.judged = False  # it was measured
    one.hits, one.occurrences, one.followed, one.count = (
        kill.hits,
        kill.occurrences,
        kill.followed,
        kill.count,
    )
    one.facts.add("killed-not-counted")
    found.append(one)
