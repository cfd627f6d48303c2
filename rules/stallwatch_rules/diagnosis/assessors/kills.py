"""Based on a run's memory use, decide whether the kernel sent a SIGKILL because memory ran out."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from stallwatch_rules.diagnosis.exits import FROM_OUTSIDE, SIGKILL, lines_about_memory
from stallwatch_rules.diagnosis.findings import RuleFinding, came_before, concluded
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, RemovedFinding, Snapshot
from stallwatch_rules.endings import BY_SIGKILL, Ending, MemoryUse
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.locale import contains_message
from stallwatch_rules.messages import Message, message
from stallwatch_rules.text.display import size_text
from stallwatch_rules.text.lazy import lazy

_LOCAL = lazy(r"\(exitcode: -9\) local_rank: (\d{1,6})\b")


def kills(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess a SIGKILL whose lines do not mention memory.

    A scheduler sends SIGKILL if SIGTERM has no effect. If a scheduler or a launcher is known to have ended
    the run, or if ranks had already timed out, the kill does not explain the failure. A scheduler that
    cancels the run after the kill ends only the remaining processes.

    Example: if the log contains only ``failed (exitcode: -9) local_rank: 0``, only the signal is known.
    """
    kill = now.tagged(SIGKILL)
    if kill is None or not kill.hits or kill.harm != "fatal" or run.context.kind == "oom-killed":
        return
    proof = lines_about_memory(kill)
    if proof:
        yield replace(kill, proof=proof)
        return
    note = kill.note
    for finding in now.fatal:
        if finding is kill:
            continue
        left = finding.tagged("follows-failure") and came_before(kill, finding)
        gave_up = finding.role == "symptom" and "timeout" in finding.rule and came_before(finding, kill)
        if (finding.tagged("ends-from-outside") and not left) or gave_up:
            yield replace(finding, explains=(*finding.explains, kill.rule))
            note = note or message("diagnosis.killed-afterwards", rule=finding.rule)
    yield replace(kill, proof=(), note=note).with_facts("signal-only")


def memory(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Assess a SIGKILL based on memory use. If memory use was low, the kernel did not send the signal.

    Example: ``(exitcode: -9)`` while 12 of 128 GiB were in use becomes ``process-killed-from-outside``.
    """
    context, memory, kill = run.context, run.context.memory, now.tagged(SIGKILL)
    if kill is None or kill.harm != "fatal" or memory is None:
        return
    if lines_about_memory(kill) or "ending-counted" in kill.facts:
        return
    if any(kill.rule in finding.all_explained for finding in now.fatal):
        return  # the kill ended the run, and the sender of the signal is known
    for_memory = replace(kill, facts=kill.facts - {"signal-only", "ending-killed"})
    if memory.counted or context.kind == "oom-killed":
        note = message("diagnosis.killed-counted")
        # The kernel counted an OOM kill, but it might have killed a different process.
        facts = ["ending-counted"] if context.kind != "oom-killed" else []
        yield replace(for_memory.with_facts(*facts), note=note)
        return
    sizes = {"held": size_text(memory.most), "limit": size_text(memory.limit)}
    if memory.speaks == "for":
        note = message("diagnosis.killed-near-limit", **sizes)
        yield replace(for_memory.with_facts("memory-near-limit"), note=note)
    elif memory.speaks in ("far", "against"):
        here = _was_here(kill, run, memory)
        if here and memory.speaks == "against" and run.catalogue.tagged(FROM_OUTSIDE):
            yield from _by_another(kill, run, now, message("diagnosis.killed-from-outside", **sizes))
        elif here is not False:
            yield kill.with_facts("memory-far-from-limit")


def _killed_here(ending: Ending) -> bool:
    """Return whether the watched process itself was killed, rather than one of its child processes."""
    detail = ending.detail
    how = detail.params.get("how") if isinstance(detail, Message) else None
    status_signal = isinstance(how, Message) and how.has("run.status-signal")
    itself = status_signal or contains_message(detail, "run.ended-signal", "run.status-signal")
    return ending.kind == "killed" and (ending.crash is not None or (ending.signal == "SIGKILL" and itself))


def _was_here(kill: RuleFinding, run: Snapshot, memory: MemoryUse) -> bool | None:
    """Return whether the process was killed on the observed host, or ``None`` if this is unknown.

    The log of pdsh, mpirun, or srun contains the lines of all nodes, but memory use was observed on only one
    host and is not evidence about the other hosts.
    """
    ending = run.context.ending
    if ending is not None and _killed_here(ending):
        return True
    ranks = {rank for _, rank in run.streams if rank is not None}
    summaries = [stream.summary for stream in run.streams.values()]
    killed = {rank for each in summaries for rank, code in each.codes.items() if code in BY_SIGKILL}
    known = set(memory.ranks)
    if killed and killed <= known:
        return True  # prefixes of other lines, such as ``[default0]:``, can contain local ranks
    if run.hosts and killed:  # the ending belongs to one of several watched hosts
        hosts = set(run.hosts.of(killed))
        ranks = {rank for rank in ranks if run.hosts.host(rank) in hosts}
    if known and not known.issuperset((*ranks, *killed)):
        return False
    if any(each.one_node for each in summaries):
        return True
    if not killed:  # torchrun's local rank equals the global rank on the first node
        texts = [text for hits in kill.hits.values() for text in hits.exemplars]
        numbers = [_LOCAL.search(text) for text in texts]
        killed = {int(number[1]) if number is not None else -1 for number in numbers}
    return True if killed and killed <= known else None


def _by_another(kill: RuleFinding, run: Snapshot, now: Assessment, note: Message) -> Iterator[Change]:
    """Replace the finding for a kill with a finding for a kill from outside that has the same lines."""
    yield RemovedFinding(kill.rule)
    other = now.tagged(FROM_OUTSIDE)
    if other is not None:
        yield replace(other, note=other.note or note)
        return
    page = run.catalogue.pages[run.catalogue.rule_tagged(FROM_OUTSIDE)]
    finding = concluded(page, Judgement("fatal", note), seen=True).with_facts("killed-not-counted")
    lines = {"hits": kill.hits, "occurrences": kill.occurrences, "followed": kill.followed}
    yield replace(finding, count=kill.count, **lines)
