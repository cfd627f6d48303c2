"""A rank whose own end its launcher saw first, where the others only say that they lost a peer."""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.peers import ended_first, ended_well, lost_peers, wreckage
from stallwatch_rules.diagnosis.signals import ENDED_WITH, SIGTERM
from stallwatch_rules.diagnosis.silentexit import MOST, ended_silently
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.verdict import WITH_STATUS
from stallwatch_rules.endings import Left
from stallwatch_rules.judgements.conclusions import LEFT_EARLY, concluded
from stallwatch_rules.judgements.early_exit import told_of
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import Text
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.progress.tracker import ProgressTracker

#: Signals whose reason stands elsewhere, where anything tells it.
ITSELF: tuple[Tag, ...] = ("sigabrt", "other-signal")
UNCAUGHT = 1  #: the status of every exception that nobody catches; its traceback may stand in another log


def first_failure(run: Snapshot, now: Assessment) -> None:
    """Take the rank that ended first for the cause, where the others only say that they lost a peer.

    An abort is a symptom where its reason stands in the log. Where all that others say is that they lost a
    peer, the one that aborted is the one to look at. So is one that ended with an exit status and no word.

    Example: rank 0 lost its NCCL peer, and torchrun says ``exitcode: -6`` of rank 3: that abort.
    """
    found, exceptions = now.found, now.exceptions
    catalogue, streams, tracker, question = run.catalogue, run.streams, run.tracker, run.question
    missing = ended_well(streams)
    first = (missing, 0) if missing is not None else ended_first(streams)
    if first is None:
        return
    rank, code = first
    fatal = [one for one in found if one.is_failure]
    itself = {rule for tag in ITSELF for rule in catalogue.tagged(tag)}
    known = {SIGTERM, *itself, *wreckage(found, (rank, None))}
    others = [one for one in exceptions.fatal if not one.peer_gone or one.stream[1] in (rank, None)]
    if others or not lost_peers(fatal, (rank, None)) or any(one.rule not in known for one in fatal):
        return
    if code == 0:
        if LEFT_EARLY in catalogue.pages:
            left = [Left(rank, tracker.steps.get(rank))]
            told: Text = told_of(left, stepped=tracker.progressed)
            found.append(_left(catalogue, told, rank, streams, tracker))
    elif any(code in ENDED_WITH[tag] for tag in ITSELF):
        for one in fatal:
            if one.rule in itself:
                one.role, one.explains = "cause", [*known - itself]
                one.facts.add("signal-only")
    elif 0 < code <= MOST and (code != UNCAUGHT or (question.kind and _heard(rank, streams))):
        told = ended_silently(found, exceptions, streams)
        if told and LEFT_EARLY in catalogue.pages:
            found.append(_left(catalogue, told, rank, streams, tracker))


def _heard(rank: int, streams: Streams) -> bool:
    """Whether this rank's lines were read: launchers may write them elsewhere, or leave them out."""
    return any(of == rank and stream.index for (_, of), stream in streams.items())


def _left(catalogue: Catalogue, told: Text, rank: int, streams: Streams, tracker: ProgressTracker) -> Found:
    """The rank that left, with the line of the launcher that says so."""
    one = concluded(catalogue.pages[LEFT_EARLY], Judgement("fatal", told))
    one.judged = False  # a launcher saw it
    one.facts |= {"left-early", WITH_STATUS}
    lines = [line for stream in streams.values() if (line := stream.summary.told.get(rank)) is not None]
    last = [stream.last_advance for (_, of), stream in streams.items() if of == rank]
    lines = lines or [line for line in last if line is not None]
    one.where = msgspec.structs.replace(lines[0], rank=rank) if lines else None
    one.step = tracker.steps.get(rank, tracker.last_step)
    return one
