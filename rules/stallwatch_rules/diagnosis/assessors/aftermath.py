"""What follows a failure, or the end of a run that finished."""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import Unknown
from stallwatch_rules.diagnosis.findings import Found, came_before
from stallwatch_rules.diagnosis.helpers import of_another, texts_of
from stallwatch_rules.diagnosis.peers import ended_with, wreckage
from stallwatch_rules.diagnosis.signals import BY_SEGFAULT, SIGTERM
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.verdict import AT_EXIT
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import message
from stallwatch_rules.records import Harm
from stallwatch_rules.text.lazy import lazy

#: glibc's words before it aborts (malloc/malloc.c), which alone do not say whose process it was.
_HEAP = lazy(r"^(?:double free|free\(\): |malloc(?:_consolidate)?\(\): |munmap_chunk\(\): |corrupted )")
#: A shell's, a container's or systemd's words for a process that a signal ended, which may be a helper's.
_SOMEBODYS = lazy(
    r": line \d+: +\d+ |\b[Cc]ode[:= ]+1[2-9]\d\b|^[A-Z][\w /-]{3,40}(?: ?\(core dumped\))?\s*$"
    r"|Main process exited, code=|^g?make(?:\[\d+\])?: |^zsh: "
)

#: A task that failed by itself: cancelled ones end by these signals, too (SIGINT, SIGKILL, SIGTERM).
_TASK_FAILED = lazy(r"Exited with exit code (?!(?:130|137|143)\b)[1-9]")


def aftermath(run: Snapshot, now: Assessment) -> None:
    """Make a symptom of what also follows a failure: Slurm cancels a step whose task failed.

    Slurm cancels a step when one of its tasks failed, the other nodes lose the rendezvous with the node that
    died, and a process that is being torn down may end in a segmentation fault. But that its peers lost it
    does not make a process crash, though they may tell it first.

    Example: ``torch.OutOfMemoryError``, then ``STEP 88131.0 ON n1 CANCELLED``: a symptom.
    """
    found, exceptions, streams = now.found, now.exceptions, run.streams
    leave_out_request(found)
    for late in found:
        if not late.tagged("follows-failure") or late.harm != "fatal" or not late.hits:
            continue
        failures = [one for one in found if one.is_failure]
        others, raised = {*run.catalogue.tagged("follows-failure"), SIGTERM}, exceptions.fatal
        if late.tagged("sigsegv"):
            own = {rank for _, rank in late.hits if rank is not None} | ended_with(BY_SEGFAULT, streams)
            others |= wreckage(found, own)
            raised = [one for one in raised if not one.peer_gone or one.stream[1] in own]
        earlier = any(one.rule not in others and came_before(one, late) for one in failures)
        if earlier or any(_raised_first(one, late) for one in raised):
            late.role = "symptom"
        elif late.tagged("cancelled") and _task_failed_before(found, late):
            late.role = "wrapper"


def leave_out_request(found: list[Found]) -> None:
    """Leave out that the job was cancelled on request, where only srun's "Job step aborted" says so.

    srun says that at each end of a step, whatever it was for (`src/srun/libsrun/launch.c`).
    """
    if any(one.tagged("scheduler-decides") and one.harm == "fatal" for one in found):
        found[:] = [one for one in found if not one.tagged("cancelled") or not _only_aborted(one)]


def _only_aborted(one: Found) -> bool:
    texts = [text for hits in one.hits.values() for text in (*hits.exemplars, hits.last.line.text)]
    return bool(texts) and all("srun: Job step aborted" in text for text in texts)


def _task_failed_before(found: list[Found], late: Found) -> bool:
    """Whether srun saw a task fail before the step was cancelled, and so cancelled it itself."""
    task = next((one for one in found if one.tagged("task-failed") and one.harm == "fatal"), None)
    if task is None or not came_before(task, late):
        return False
    return any(_TASK_FAILED.search(hits.first.line.text) for hits in task.hits.values())


def _raised_first(one: Unknown, late: Found) -> bool:
    """Whether an unknown exception is known to have come before a finding."""
    places = late.occurrences
    if one.time is not None and all(place.time is not None for place in places):
        return all(place.time is not None and one.time < place.time for place in places)
    own = [place for place in places if place.stream == one.stream]
    return bool(own) and all(one.index < place.position for place in own)


def abort_at_exit(_: Snapshot, now: Assessment) -> None:
    """Forgive an abort after the last step: threads and communicators that are left are torn down by it.

    Some releases of DeepSpeed and of libraries with threads of their own do so after every successful run.
    The C library's words before an abort are not even that, where nothing says that the run aborted. And a
    script that ends its helpers after the training lets its shell tell which signal ended them.

    Example: ``Training completed.``, then ``Fatal Python error: Aborted``: degrading.
    """
    fatal, facts = now.fatal(), now.facts
    if not facts.complete or now.exceptions.fatal:
        return
    if fatal and all(_somebodys(one) for one in fatal):
        for one in fatal:
            one.set(Judgement("harmless", message("diagnosis.aborted-at-exit")))
            one.judged = False
        return
    abort = next((one for one in fatal if one.tagged("sigabrt")), None)
    if abort is None:
        return
    if any(one is not abort and one.role != "wrapper" and one.rule != SIGTERM for one in fatal):
        return
    told = [text for hits in abort.hits.values() for text in (*hits.exemplars, hits.last.line.text)]
    only_words = bool(told) and not facts.died and all(map(_HEAP.match, told))
    for one in fatal:
        harm: Harm = "degrading" if one is abort and not only_words else "harmless"
        one.set(Judgement(harm, message("diagnosis.aborted-at-exit")))
        one.judged = False
    abort.facts.add(AT_EXIT)


def _somebodys(one: Found) -> bool:
    """Whether all lines of it only say that some process ended, not that it was the training's."""
    if one.tagged("any-process") and one.hits:
        return one.tagged("exit-status") or all(map(_SOMEBODYS.search, texts_of(one)))
    return of_another(one)
