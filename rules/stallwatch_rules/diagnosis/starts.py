"""Describe the starts of a program whose log contains the output of several starts."""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Diagnosis, Line, Start
from stallwatch_rules.report.phrases import job_title
from stallwatch_rules.starts import Head, Part, Starts
from stallwatch_rules.text.display import iso


def ended_in_trouble(diagnosis: Diagnosis) -> bool:
    """Return whether the diagnosed part of a log failed, stalled, or was interrupted."""
    return diagnosis.in_trouble or diagnosis.verdict == "interrupted"


def came_after(head: Head, diagnosis: Diagnosis) -> bool:
    """Return whether a start's failures came after its first lines.

    Errors that occurred only among these lines did not end the start.
    """
    fatal = [finding for finding in diagnosis.findings if finding.harm == "fatal"]
    unknown = [exception.first.line for exception in diagnosis.unknown]
    firsts = [*unknown, *(finding.first.line for finding in fatal)]
    lasts = [*unknown, *(finding.last.line for finding in fatal)]
    return not firsts or (min(firsts) > head.first and max(lasts) > head.last)


def start_of(diagnosis: Diagnosis, streams: Streams, first: Line, last: Line) -> Start:
    """Return the record of the start whose lines range from `first` to `last`."""
    readings = streams.values()
    began = min((reading.first_time for reading in readings if reading.first_time is not None), default=None)
    ended = max((reading.last_time for reading in readings if reading.last_time is not None), default=None)
    zoned = all(reading.last_zoned for reading in readings)
    progress, primary = diagnosis.progress, diagnosis.primary
    return Start(
        number=0,
        file=first.source,
        first_line=first.number,
        last_line=last.number,
        verdict=diagnosis.verdict,
        rule=primary.rule if primary is not None else None,
        title=job_title(diagnosis),
        first_step=progress.first_step,
        last_step=progress.last_step,
        total_steps=progress.total_steps,
        began=iso(began, zoned=zoned),
        ended=iso(ended, zoned=zoned),
        interrupted_by=diagnosis.interrupted_by,
    )


def add_starts(diagnosis: Diagnosis, starts: Starts, streams: Streams, part: Part) -> None:
    """Add all starts to the diagnosis of the newest start, with a note on how the earlier starts ended."""
    if diagnosis.verdict == "no-training-log" and starts.is_of_training:
        diagnosis.verdict = "no-evidence"  # like the earlier starts, the newest start is a training run
    newest = start_of(diagnosis, streams, part.first, part.last)
    newest.number, newest.reported = starts.count + 1, True
    diagnosis.starts = [newest, *reversed(list(starts))]
    diagnosis.notes = [_note(starts), *diagnosis.notes]


def _note(starts: Starts) -> Text:
    """Return a note such as ``The log contains 3 earlier starts: 3× FAILED (cuda-oom).``"""
    ends: list[str | Message] = [
        message("diagnosis.starts-ended", count=count, verdict=message(f"report.{verdict}"), rule=rule)
        if rule is not None
        else message("diagnosis.starts-ended-so", count=count, verdict=message(f"report.{verdict}"))
        for (verdict, rule), count in sorted(
            starts.verdicts.items(), key=lambda item: (-item[1], str(item[0]))
        )
    ]
    return message("diagnosis.earlier-starts", count=starts.count, ends=ends)
