"""A run that says itself that a signal asked it to end: that is an end, and no failure that a rule knows.

Schedulers send SIGTERM (or the signal that ``sbatch --signal`` names) before they take a node away, and many
trainers save and leave at it, each in words of its own.
"""

from __future__ import annotations

import re

from stallwatch_rules.diagnosis.endings import SIGTERM
from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.verdict import Question
from stallwatch_rules.judgements.conclusions import concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line
from stallwatch_rules.text.reported import earliest
from stallwatch_rules.text.sentences import say

ASKED = "asked-to-end"  #: the fact of such an end, and the sentence about it
NEAR = 500  #: lines before the end of a stream within which it must stand

_SIGNAL = r"(?:SIG(?:TERM|HUP|USR[12])\b|(?:termination )?signal:? ?\(?(?:1|10|12|15)\b)"
_ASKED = re.compile(
    rf"(?i)\b(?:recei?v(?:ed|ing)|caught|got|trapped|handling|after|due to|because of|on)\b.{{0,24}}?"
    rf"\b{_SIGNAL}|\b{_SIGNAL}.{{0,12}}?\b(?:received|caught)\b|(?:收到|捕获).{{0,8}}?{_SIGNAL}"
)
#: Of what a program means to do at a signal, or does not do.
_NOT = re.compile(
    r"(?i)\bignor|bypass|\bregist|install|\b(?:when|if|upon|wait(?:s|ing)? for|listen(?:s|ing)?)\b"
    r"|\bon SIG\w+,? .{0,40}?\bwill\b|handlers? (?:is |are )?set|\bset(?:ting)? up|忽略|注册|如果|当"
)


def tell_asked(
    found: list[Found],
    catalogue: Catalogue,
    exceptions: Exceptions,
    streams: Streams,
    tracker: ProgressTracker,
    question: Question,
) -> None:
    """Add the end by a signal of a run in which nothing failed: a harmless finding, at its line."""
    if question.failed or question.now is not None or tracker.told_finished or SIGTERM not in catalogue.pages:
        return
    if not tracker.progressed:
        return  # servers and other programs are asked to end, too
    failed = exceptions.fatal or any(one.harm == "fatal" and one.role != "notice" for one in found)
    lines = _told(streams)
    if failed or not lines or any(one.rule == SIGTERM for one in found):
        return
    one = concluded(catalogue.pages[SIGTERM], Judgement("harmless", say(ASKED, question.language)))
    one.judged = False  # the log says so
    one.facts.add(ASKED)
    one.where, one.step = earliest(lines), tracker.last_step
    found.append(one)


def _told(streams: Streams) -> list[Line]:
    """The lines after the last step, near the end, that say that a signal came.

    One rank may say it, and the steps stand in lines that name none: a source's lines are one text.
    """
    stepped: dict[str, int] = {}
    for stream in streams.values():
        if stream.last_advance is not None:
            stepped[stream.source] = max(stream.last_advance.number, stepped.get(stream.source, 0))
    return [
        entry.last
        for stream in streams.values()
        for entry in stream.templates.entries.values()
        if entry.advances >= stream.timelines.advances
        and entry.last.number > stepped.get(stream.source, 0)
        and stream.index - entry.last_index <= NEAR
        and _ASKED.search(entry.last.text)
        and not _NOT.search(entry.last.text)
    ]
