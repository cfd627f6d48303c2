"""Assess how the run and its log ended, based on the command, the launcher, and signals.

Schedulers send SIGTERM (or the signal that ``sbatch --signal`` names) before they reclaim a node. Many
trainers then save their state and exit, each with its own message. Such an end is not a failure, and no rule
describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from msgspec.structs import replace

from stallwatch_rules.diagnosis.awaited import AWAITS_PEER, busy_ranks, seen_elsewhere
from stallwatch_rules.diagnosis.exceptions import named
from stallwatch_rules.diagnosis.exits import (
    SIGKILL,
    SIGTERM,
    ended_from_outside,
    failures_of_lost_peers,
)
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams, concluded
from stallwatch_rules.diagnosis.outside_end import is_end
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, Snapshot, StallEnds
from stallwatch_rules.diagnosis.verdict import END_REQUESTED
from stallwatch_rules.endings import signal_name
from stallwatch_rules.failures.crashes import GRACEFUL_SIGNALS as SIGNALS_TO_END
from stallwatch_rules.judgements.conclusions import STANDSTILLS
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.locale import contains_message, render
from stallwatch_rules.messages import message
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.records import Line
from stallwatch_rules.stream import SOURCE, StreamReading
from stallwatch_rules.text.display import earliest
from stallwatch_rules.text.lazy import lazy

FAR = 500  #: maximum number of lines that follow a failure that ended the log
_OWN_WORK = frozenset(("data", "rlhf-and-rollout"))  # rule families for failures in one rank's work
_HANGS = lazy(r"timeout|timed-out|heartbeat|hang|stuck|sigabrt")
_TIMED_OUT = lazy(r"[Tt]imed out|[Tt]ime-?out")

#: Tag of the rule for each kind of ending that the agent observes with certainty.
_ENDINGS: dict[str, Tag] = {"oom-killed": SIGKILL, "time-limit": "time-limit"}
#: Tag of the rule for each signal that a process itself causes.
SIGNALS: dict[str, Tag] = {
    "SIGSEGV": "sigsegv",
    "SIGBUS": "sigbus",
    "SIGABRT": "sigabrt",
    "SIGFPE": "sigfpe",
    "SIGILL": "sigill",
}
#: Other signals that end a process that does not handle them. The rule for these signals has the tag
#: "other-signal".
_OTHERS = ("SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE")

NEAR = 500  #: maximum number of lines between the report of a signal and the end of the stream
GRACE = 5  #: maximum number of steps that a stream shows after the report of the signal
_SIGNAL = r"(?:SIG(?:TERM|HUP|USR[12])\b|(?:termination )?signal:? ?\(?(?:1|10|12|15)\b)"
_SIGNAL_RECEIVED = lazy(
    rf"(?i)\b(?:recei?v(?:ed|ing)|caught|got|trapped|handling|after|due to|because of|on)\b.{{0,24}}?"
    rf"\b{_SIGNAL}|\b{_SIGNAL}.{{0,12}}?\b(?:received|caught)\b|(?:收到|捕获).{{0,8}}?{_SIGNAL}"
)
#: Text about the handler of a signal, or about an ignored signal, rather than about a received signal.
_NO_SIGNAL_RECEIVED = lazy(
    r"(?i)\bignor|bypass|\bregist|install|\b(?:when|if|upon|wait(?:s|ing)? for|listen(?:s|ing)?)\b"
    r"|\bon SIG\w+,? .{0,40}?\bwill\b|handlers? (?:is |are )?set|\bset(?:ting)? up|忽略|注册|如果|当"
)


def known_ending(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If the agent observed the end of the run but no line of the log shows it, add a finding for the end.

    Example: if the kernel counted an out-of-memory kill that no line mentions, add ``host-oom-sigkill``.
    """
    context, pages = run.context, run.catalogue.pages
    if context.ending is None:
        return
    tag: Tag | None = _ENDINGS.get(context.kind)
    rule = run.catalogue.rule_tagged(tag) if tag is not None else ""
    if rule in pages and now.get(rule) is None:
        judgement = Judgement("fatal", context.ending.detail)
        yield concluded(pages[rule], judgement).with_facts("ending-counted")


def end(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Record whether the log ends with the timeout of a collective or with a different failure.

    Example: if the log ends with ``Watchdog caught collective operation timeout``, a collective timed out and
    a peer is lost.
    """
    ends = now.ends
    if run.clock.ended:
        ends = frozenset(finding.rule for finding in now.found if is_end(finding))
        yield StallEnds(ends)
    fatal = [finding for finding in now.fatal if finding.rule not in ends]
    own_failure = any(finding.role == "cause" or _is_of_own_work(finding) for finding in fatal)
    timed_out = _ends_in_timeout(fatal) or now.exceptions.timed_out
    other = any(not seen.timed_out for seen in now.exceptions.fatal)
    lost = timed_out or any(finding.role == "symptom" for finding in fatal)
    failed_otherwise = own_failure or (other and not timed_out)
    waited = [finding.rule for finding in fatal if finding.role == "symptom" and finding.tagged(AWAITS_PEER)]
    missed = now.facts.missed or any(
        seen_elsewhere(rule, run, now) or busy_ranks(rule, run, now) is not None for rule in waited
    )
    yield replace(now.facts, lost=lost, timed_out=timed_out, failed_otherwise=failed_otherwise, missed=missed)


def _is_of_own_work(finding: RuleFinding) -> bool:
    """Return whether a symptom is a failure in a rank's own work, not a result of other ranks' stalls."""
    return finding.role == "symptom" and finding.page.family in _OWN_WORK and "timeout" not in finding.rule


def _ends_in_timeout(fatal: Iterable[RuleFinding]) -> bool:
    """Return whether the run ended with a symptom of a stall, such as the timeout of a collective."""
    return any(
        _HANGS.search(finding.rule)
        or (finding.first is not None and _TIMED_OUT.search(finding.first.line.text))
        for finding in fatal
        if finding.role == "symptom"
    )


def distance(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If much output follows a finding, mark the finding as less certain: it might not have ended the run.

    Example: if 600 lines without a step follow ``torch.OutOfMemoryError``, the confidence is lower.
    """
    for finding in now.found if not run.died else ():
        after = [run.streams[key].index - 1 - hits.last_index for key, hits in finding.hits.items()]
        if min(after, default=0) > FAR:
            yield finding.with_facts("long-before-the-end")


def stall_ends(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """Reclassify findings that show only what ended a stalled run as symptoms.

    Example: ``CANCELLED AT … DUE TO TIME LIMIT`` after 7 hours without a step is a symptom.
    """
    if run.clock.ended and any(finding.rule in STANDSTILLS for finding in now.fatal):
        note = message("diagnosis.ended-a-stall")
        yield from (replace(finding, role="symptom", note=note) for finding in now.fatal if is_end(finding))


def signals(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If no line of the log explains the signal that ended the run, add a finding for the signal.

    If other ranks report that they lost the rank that received the signal, their reports do not explain the
    signal. A launcher can return 1 after a signal ended one of its ranks.

    Example: if the agent reports ``The command was ended by SIGSEGV.`` and the log contains only steps, add
    ``process-segfault``.
    """
    context, catalogue = run.context, run.catalogue
    ending = context.ending
    if ending is None or now.exceptions.fatal:
        return
    rank, code = next(iter(ending.codes.items()), (None, None))  # the rank that failed first
    by_signal = code is not None and code < 0
    of_rank = signal_name(code) if ending.kind == "failed" else ""
    if ending.kind != "killed" and (not of_rank or of_rank == "SIGTERM"):
        return
    lost = failures_of_lost_peers(now.found, (rank, None)) if by_signal else set()
    if any(finding.role != "wrapper" and finding.rule not in lost for finding in now.fatal):
        return
    # If a signal from outside came first, the command's reaction to it is not a separate finding.
    crash = ending.crash
    signal = "SIGKILL" if crash is not None and crash.by == "silence" else of_rank or ending.signal or ""
    if signal == "SIGTERM" or contains_message(ending.detail, "run.passed-on"):
        rule, fact, key = catalogue.rule_tagged(SIGTERM), "ending-requested", "told-to-stop"
    elif signal == "SIGKILL":
        rule, fact, key = catalogue.rule_tagged(SIGKILL), "ending-killed", "killed-silently"
    else:
        known = signal in SIGNALS or signal in _OTHERS
        rule = catalogue.rule_tagged(SIGNALS.get(signal, "other-signal")) if known else ""
        fact, key = "ending-signal", "ended-by-signal"
    if rule in catalogue.pages and now.get(rule) is None:
        finding = concluded(catalogue.pages[rule], Judgement("fatal", message(f"diagnosis.{key}")))
        if crash is not None and crash.rank is not None:
            where = Line(render(ending.detail), SOURCE, 0, crash.rank)
            finding = replace(finding, where=where, step=crash.step)
        elif of_rank:
            text = render(message("run.crash-signal", who=f"rank {rank}", signal=of_rank))
            finding = replace(finding, where=Line(text, SOURCE, 0, rank), step=run.tracker.last_step)
        yield finding.with_facts(fact)


def terminations(_: Snapshot, now: Assessment) -> Iterator[Change]:
    """Explain a SIGTERM that a launcher sent to the other ranks because of an earlier failure.

    If no launcher ends the other ranks, the death of a rank can remain unnoticed until a user checks the
    run. In this case, the rank's exception counts even if other ranks continued to train.

    Example: ``closing signal SIGTERM`` after ``torch.OutOfMemoryError`` comes from the launcher.
    """
    exceptions, termination = now.exceptions, now.tagged(SIGTERM)
    if termination is None or termination.harm != "fatal":
        return
    survived = [] if exceptions.fatal else exceptions.records()
    failed = exceptions.fatal or any(other.is_failure for other in now.found if other is not termination)
    if failed and not ended_from_outside(termination, now.found):
        yield replace(termination, note=termination.note or message("diagnosis.ended-by-launcher"))
    elif survived:
        note = message("diagnosis.told-to-stop-beside", exception=named(survived[-1]))
        yield replace(termination, note=note)


def graceful_shutdown(run: Snapshot, now: Assessment) -> Iterator[Change]:
    """If the log shows no failure but a signal that asked the run to end, add a finding for the signal.

    Example: ``[rank: 0] Received SIGTERM: 15`` after the last step shows a requested end, which is harmless.
    """
    rule, tracker, context = run.catalogue.rule_tagged(SIGTERM), run.tracker, run.context
    if context.failed or context.now is not None or tracker.shows_finish or not rule:
        return
    if not tracker.progressed:
        return  # servers and other programs also receive such signals
    failed = now.exceptions.fatal or any(finding.role != "notice" for finding in now.fatal)
    lines = signal_lines(run.streams)
    if failed or not lines or now.tagged(SIGTERM) is not None:
        return
    judgement = Judgement("harmless", message(f"diagnosis.{END_REQUESTED}"))
    where, step = earliest(lines), tracker.last_step
    page = run.catalogue.pages[rule]
    yield concluded(page, judgement, seen=True, where=where, step=step).with_facts(END_REQUESTED)


def signal_lines(streams: Streams) -> list[Line]:
    """Return lines that report a signal after the last step and near the end of a stream.

    The steps of all streams of a source count, because one rank can report the signal while the steps are
    in lines without a rank. A few steps can follow such a line, because the rank completes its current step
    before it exits.
    """
    return [
        line
        for stream in streams.values()
        for line, advances, index in _signal_reports(stream)
        if advances >= stream.timelines.advances
        and stream.index - index <= NEAR
        and all(_steps_below(other, line) <= GRACE for other in streams.values())
    ]


def _signal_reports(stream: StreamReading) -> Iterator[tuple[Line, int, int]]:
    """Yield the lines that report a signal, each with the number of earlier steps and lines in its stream."""
    for entry in stream.templates.entries.values():
        if _SIGNAL_RECEIVED.search(entry.last.text) and not _NO_SIGNAL_RECEIVED.search(entry.last.text):
            yield entry.last, entry.advances, entry.last_index
    for seen in stream.exceptions_now().seen.values():
        if seen.last.native and seen.last.exception in SIGNALS_TO_END:
            yield seen.last.line, seen.last.mark.advances, seen.last.mark.index


def _steps_below(stream: StreamReading, line: Line) -> int:
    """Return the number of steps that a stream shows after a line, or 0 for a line from another source."""
    main = stream.timelines.main if stream.source == line.source else None
    intervals = main.intervals if main is not None else []
    return sum(later.span for before, later in pairwise(intervals) if before.number > line.number)
