"""What the end of the command stands for: an ending that is known from outside, and a SIGKILL in the log."""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import Unknown, named
from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.diagnosis.helpers import of_another, texts_of
from stallwatch_rules.diagnosis.kills import SIGKILL, tells_of_memory
from stallwatch_rules.diagnosis.peers import ended_with, wreckage
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.verdict import AT_EXIT
from stallwatch_rules.judgements.conclusions import concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.records import Harm, Line
from stallwatch_rules.stream import SOURCE
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.redact import redact

SIGTERM = "secondary-sigterm-cascade"
#: Signals that a process brings upon itself, and the tags of the rules that they are.
SIGNALS: dict[str, Tag] = {
    "SIGSEGV": "sigsegv",
    "SIGBUS": "sigbus",
    "SIGABRT": "sigabrt",
    "SIGFPE": "sigfpe",
    "SIGILL": "sigill",
}
#: All others that end who does not handle them; the rule is tagged "other-signal".
_OTHERS = ("SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE")
#: Of launchers: torchrun's agent, its SignalException, accelerate's main process.
_TOLD_TO_END = lazy(r"death signal|got signal|Main process received|closing signal SIGHUP")
#: glibc's words before it aborts (malloc/malloc.c), which alone do not say whose process it was.
_HEAP = lazy(r"^(?:double free|free\(\): |malloc(?:_consolidate)?\(\): |munmap_chunk\(\): |corrupted )")
#: A shell's, a container's or systemd's words for a process that a signal ended, which may be a helper's.
_SOMEBODYS = lazy(
    r": line \d+: +\d+ |\b[Cc]ode[:= ]+1[2-9]\d\b|^[A-Z][\w /-]{3,40}(?: ?\(core dumped\))?\s*$"
    r"|Main process exited, code=|^g?make(?:\[\d+\])?: |^zsh: "
)
#: A task that failed by itself: cancelled ones end by these signals, too (SIGINT, SIGKILL, SIGTERM).
_TASK_FAILED = lazy(r"Exited with exit code (?!(?:130|137|143)\b)[1-9]")
BY_SEGFAULT = (-11, 139)  #: of a process, and of a shell that ran it


def known_ending(run: Snapshot, now: Assessment) -> None:
    """Add the rule that a known ending stands for: the kernel counted an out-of-memory kill."""
    rule, pages = SIGKILL if run.question.kind == "oom-killed" else "", run.catalogue.pages
    if run.question.kind == "time-limit":
        rule = run.catalogue.rule_tagged("time-limit")
    if rule in pages and run.question.failed is not False and not any(o.rule == rule for o in now.found):
        one = concluded(
            pages[rule], Judgement("fatal", run.question.ending_text or redact(run.question.told))
        )
        one.facts.add("ending-counted")
        now.found.append(one)


def signals(run: Snapshot, now: Assessment) -> None:
    """Add what a signal stands for that ended the run, where nothing in the log explains it."""
    found, question, catalogue = now.found, run.question, run.catalogue
    if question.kind != "killed" or question.failed is False or now.exceptions.fatal:
        return
    if any(one.harm == "fatal" and one.role != "wrapper" for one in found):
        return
    # A signal that came from elsewhere first: what the command did then is no news of its own.
    if "SIGTERM" in question.told or "passed it on" in question.told:
        rule, fact, key = SIGTERM, "ending-told-to-stop", "told-to-stop"
    elif "SIGKILL" in question.told:
        rule, fact, key = SIGKILL, "ending-killed", "killed-silently"
    else:
        signal = next((name for name in (*SIGNALS, *_OTHERS) if name in question.told), "")
        rule = catalogue.rule_tagged(SIGNALS.get(signal, "other-signal")) if signal else ""
        fact, key = "ending-signal", "ended-by-signal"
    if rule in catalogue.pages and not any(one.rule == rule for one in found):
        one = concluded(catalogue.pages[rule], Judgement("fatal", message(f"diagnosis.{key}")))
        one.facts.add(fact)
        if question.crash is not None and question.crash.rank is not None:
            one.where = Line(question.told, SOURCE, 0, question.crash.rank)
            one.step = question.crash.step
        found.append(one)


def terminations(_: Snapshot, now: Assessment) -> None:
    """Say what a SIGTERM is beside a failure: a launcher ends the other ranks after the first one failed.

    The launcher itself ends the other ranks after the first failure. Where ranks have none that does, one
    that dies is missed by nobody until somebody looks, and its exception counts though others trained on.
    """
    found, exceptions = now.found, now.exceptions
    survived = [] if exceptions.fatal else exceptions.records()
    failed = exceptions.fatal or any(_may_be_first(one) for one in found)
    for one in found:
        if one.rule == SIGTERM and one.harm == "fatal" and failed and not told_from_outside(one, found):
            one.note = one.note or message("diagnosis.ended-by-launcher")
            continue
        if one.rule == SIGTERM and one.harm == "fatal" and survived:
            one.note = message("diagnosis.told-to-stop-beside", exception=named(survived[-1]))


def _may_be_first(one: Found) -> bool:
    """Whether a launcher ends its ranks because of this."""
    return one.is_failure and one.rule != SIGTERM


def told_from_outside(sigterm: Found, found: list[Found]) -> bool:
    """Whether the launcher was told to end, or the run was ended by who can tell it so."""
    texts = (text for hits in sigterm.hits.values() for text in hits.exemplars)
    told = not sigterm.hits or any(_TOLD_TO_END.search(text) for text in texts)
    return told or any(one.tagged("ends-from-outside") and one.harm == "fatal" for one in found)


def kills(run: Snapshot, now: Assessment) -> None:
    """Weigh a SIGKILL without a word of memory: schedulers send it when SIGTERM is not obeyed.

    Schedulers and launchers send SIGTERM and, when that is not obeyed, SIGKILL: where one of them is known to
    have ended the run, or ranks had given up waiting before, the kill explains nothing. A scheduler that
    cancels after the kill only ends what the kill left.
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


def leave_out_request(found: list[Found]) -> None:
    """Leave out that the job was cancelled on request, where only srun's "Job step aborted" says so.

    srun says that at each end of a step, whatever it was for (`src/srun/libsrun/launch.c`).
    """
    if any(one.tagged("scheduler-decides") and one.harm == "fatal" for one in found):
        found[:] = [one for one in found if not one.tagged("cancelled") or not _only_aborted(one)]


def _only_aborted(one: Found) -> bool:
    texts = [text for hits in one.hits.values() for text in (*hits.exemplars, hits.last.line.text)]
    return bool(texts) and all("srun: Job step aborted" in text for text in texts)


def aftermath(run: Snapshot, now: Assessment) -> None:
    """Make a symptom of what also follows a failure: Slurm cancels a step whose task failed.

    Slurm cancels a step when one of its tasks failed, the other nodes lose the rendezvous with the node that
    died, and a process that is being torn down may end in a segmentation fault. But that its peers lost it
    does not make a process crash, though they may tell it first.
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


def _task_failed_before(found: list[Found], late: Found) -> bool:
    """Whether srun saw a task fail before the step was cancelled, and so cancelled it itself."""
    task = next((one for one in found if one.tagged("task-failed") and one.harm == "fatal"), None)
    if task is None or not came_before(task, late):
        return False
    return any(_TASK_FAILED.search(hits.first.line.text) for hits in task.hits.values())


def abort_at_exit(_: Snapshot, now: Assessment) -> None:
    """Forgive an abort after the last step: threads and communicators that are left are torn down by it.

    Some releases of DeepSpeed and of libraries with threads of their own do so after every successful run.
    The C library's words before an abort are not even that, where nothing says that the run aborted. And a
    script that ends its helpers after the training lets its shell tell which signal ended them.
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


def _raised_first(one: Unknown, late: Found) -> bool:
    """Whether an unknown exception is known to have come before a finding."""
    places = late.occurrences
    if one.time is not None and all(place.time is not None for place in places):
        return all(place.time is not None and one.time < place.time for place in places)
    own = [place for place in places if place.stream == one.stream]
    return bool(own) and all(one.index < place.position for place in own)


def came_before(one: Found, other: Found) -> bool:
    """Whether one is known to have come before the other."""
    times = [[place.time for place in found.occurrences] for found in (one, other)]
    if all(times) and all(time is not None for group in times for time in group):
        earliest = [min(time for time in group if time is not None) for group in times]
        return earliest[0] < earliest[1]
    orders = [
        place.position < later.position
        for place in one.occurrences
        for later in other.occurrences
        if place.stream == later.stream
    ]
    return bool(orders) and all(orders)
