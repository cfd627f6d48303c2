"""How the run was ended, as its command, its launcher or a signal says."""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import named
from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.diagnosis.signals import SIGKILL, SIGTERM, told_from_outside
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.stood import is_end
from stallwatch_rules.judgements.conclusions import STANDSTILLS, concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.records import Line
from stallwatch_rules.stream import SOURCE
from stallwatch_rules.text.redact import redact

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


def known_ending(run: Snapshot, now: Assessment) -> None:
    """Add the rule that a known ending stands for: the kernel counted an out-of-memory kill.

    Example: the kernel counted an out-of-memory kill: host-oom-sigkill, without a line of the log.
    """
    rule, pages = SIGKILL if run.question.kind == "oom-killed" else "", run.catalogue.pages
    if run.question.kind == "time-limit":
        rule = run.catalogue.rule_tagged("time-limit")
    if rule in pages and run.question.failed is not False and not any(o.rule == rule for o in now.found):
        one = concluded(
            pages[rule], Judgement("fatal", run.question.ending_text or redact(run.question.told))
        )
        one.facts.add("ending-counted")
        now.found.append(one)


def stall_ends(run: Snapshot, now: Assessment) -> None:
    """Make the end of a stalled run a symptom: a time limit that was reached hours after the last step.

    Example: no step for 7 hours, then ``CANCELLED AT … DUE TO TIME LIMIT``: a symptom.
    """
    if not run.clock.ended or not any(one.rule in STANDSTILLS for one in now.fatal()):
        return
    for one in now.fatal():
        if is_end(one):
            one.role, one.note = "symptom", message("diagnosis.ended-a-stall")


def signals(run: Snapshot, now: Assessment) -> None:
    """Add what a signal stands for that ended the run, where nothing in the log explains it.

    Example: ``The command was ended by SIGSEGV.`` beside a log of steps: process-segfault.
    """
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

    Example: ``torch.OutOfMemoryError``, then ``closing signal SIGTERM``: the launcher's.
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
