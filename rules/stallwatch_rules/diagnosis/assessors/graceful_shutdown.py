"""A run that says itself that a signal asked it to end: that is an end, and no failure that a rule knows.

Schedulers send SIGTERM (or the signal that ``sbatch --signal`` names) before they take a node away, and many
trainers save and leave at it, each in words of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.diagnosis.signals import SIGTERM
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.failures.crashes import ASKED as SIGNALS
from stallwatch_rules.judgements.conclusions import concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import message
from stallwatch_rules.records import Line
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.reported import earliest

ASKED = "asked-to-end"  #: the fact of such an end, and the key of its message
NEAR = 500  #: lines before the end of a stream within which it must stand
GRACE = 5  #: steps that other ranks' lines may still tell below it

_SIGNAL = r"(?:SIG(?:TERM|HUP|USR[12])\b|(?:termination )?signal:? ?\(?(?:1|10|12|15)\b)"
_ASKED = lazy(
    rf"(?i)\b(?:recei?v(?:ed|ing)|caught|got|trapped|handling|after|due to|because of|on)\b.{{0,24}}?"
    rf"\b{_SIGNAL}|\b{_SIGNAL}.{{0,12}}?\b(?:received|caught)\b|(?:收到|捕获).{{0,8}}?{_SIGNAL}"
)
#: Of what a program means to do at a signal, or does not do.
_NOT = lazy(
    r"(?i)\bignor|bypass|\bregist|install|\b(?:when|if|upon|wait(?:s|ing)? for|listen(?:s|ing)?)\b"
    r"|\bon SIG\w+,? .{0,40}?\bwill\b|handlers? (?:is |are )?set|\bset(?:ting)? up|忽略|注册|如果|当"
)


def graceful_shutdown(run: Snapshot, now: Assessment) -> None:
    """Add that a signal asked the run to end, where it says so itself and nothing failed.

    Example: ``[rank: 0] Received SIGTERM: 15`` after the last step: asked to end, harmless.
    """
    found, catalogue, tracker, question = now.found, run.catalogue, run.tracker, run.question
    if question.failed or question.now is not None or tracker.told_finished or SIGTERM not in catalogue.pages:
        return
    if not tracker.progressed:
        return  # servers and other programs are asked to end, too
    failed = now.exceptions.fatal or any(one.harm == "fatal" and one.role != "notice" for one in found)
    lines = _told(run.streams)
    if failed or not lines or any(one.rule == SIGTERM for one in found):
        return
    one = concluded(catalogue.pages[SIGTERM], Judgement("harmless", message(f"diagnosis.{ASKED}")))
    one.judged = False  # the log says so
    one.facts.add(ASKED)
    one.where, one.step = earliest(lines), tracker.last_step
    found.append(one)


def _told(streams: Streams) -> list[Line]:
    """The lines after the last step, near the end, that say that a signal came.

    One rank may say it, and the steps stand in lines that name none: a source's lines are one text. A step
    that was begun, and some more, are done before such a rank leaves.
    """
    return [
        line
        for stream in streams.values()
        for line, advances, index in _signs(stream)
        if advances >= stream.timelines.advances
        and stream.index - index <= NEAR
        and all(_steps_below(other, line) <= GRACE for other in streams.values())
    ]


def _signs(stream: StreamReading) -> Iterator[tuple[Line, int, int]]:
    """The lines of one stream that tell of a signal, with its steps and its lines until then."""
    for entry in stream.templates.entries.values():
        if _ASKED.search(entry.last.text) and not _NOT.search(entry.last.text):
            yield entry.last, entry.advances, entry.last_index
    for seen in stream.exceptions_now().seen.values():
        if seen.last.native and seen.last.exception in SIGNALS:
            yield seen.last.line, seen.last.mark.advances, seen.last.mark.index


def _steps_below(stream: StreamReading, line: Line) -> int:
    """Steps of a stream that were begun below a line of its source, as far as its lines tell them."""
    main = stream.timelines.main if stream.source == line.source else None
    told = main.intervals if main is not None else []
    return sum(later.span for before, later in pairwise(told) if before.number > line.number)
