"""Summarize several jobs, or several starts of one job, in a short table for all reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from stallwatch_rules.decoding import convert
from stallwatch_rules.locale import render
from stallwatch_rules.messages import has, message
from stallwatch_rules.records import JobSummary, Start, Verdict
from stallwatch_rules.report.clean import cleaned_job
from stallwatch_rules.report.phrases import clock, listed, steps_of, word
from stallwatch_rules.text.digest import shortened

MAX_JOBS = 20  #: maximum number of lines in the table; the reported job is always shown
_MAX_CAUSE = 90  # maximum number of characters of a cause
_WELL: tuple[Verdict, ...] = ("finished", "healthy")
OTHER = "other"  #: name for files that do not belong to a known job


class Row(NamedTuple):
    """A row of the table for one job or one start of a job."""

    cells: list[str]  #: name, verdict, cause, last step, and more
    verdict: Verdict
    reported: bool


class Table(NamedTuple):
    """The rows of the table, with its column titles and a summary."""

    heads: list[str]
    rows: list[Row]
    more: str  #: number of older entries that are left out, if any
    summary: str  #: number of all entries, and the name of the reported entry


def table(jobs: Sequence[JobSummary], language: str = "en", most: int = MAX_JOBS) -> Table:
    """Return the table of jobs, in the order of `jobs`."""
    heads = [
        word(key, language)
        for key in ("job", "verdict", "primary", "last-step", "last-written", "files-head")
    ]
    jobs = [convert(cleaned_job(job), JobSummary) for job in jobs]
    shown = [job for number, job in enumerate(jobs) if number < most or job.reported]
    more = ""
    if len(jobs) > len(shown):
        left = [render(job.badge, language) for job in jobs[most:] if not job.reported]
        counts = listed([f"{count} {badge}" for badge, count in Counter(left).most_common()], language)
        more = word("jobs-more", language, count=len(left), told=counts)
    return Table(heads, [_row(job, language) for job in shown], more, _summary(jobs, language))


def starts_table(starts: Sequence[Start], language: str = "en", most: int = MAX_JOBS) -> Table:
    """Return the table of the starts in a log, in the order of `starts` (newest first)."""
    heads = [
        word(key, language)
        for key in ("start", "verdict", "primary", "last-step", "lines-head", "began-head")
    ]
    rows = [Row(_start(start, language), start.verdict, start.reported) for start in starts[:most]]
    count = max(start.number for start in starts)
    newest = next((start.number for start in starts if start.reported), count)
    more = word("starts-more", language, count=count - len(rows)) if count > len(rows) else ""
    return Table(heads, rows, more, word("starts-shown", language, count=count, number=newest))


def _start(start: Start, language: str) -> list[str]:
    return [
        str(start.number),
        render(message(f"report.{start.verdict}"), language),
        _cause(start, language) if start.rule is not None or start.interrupted_by != "user" else "",
        steps_of(start, language),
        f"{start.first_line}–{start.last_line}",
        clock(start.began) if start.began is not None else "",
    ]


def _summary(jobs: Sequence[JobSummary], language: str) -> str:
    troubled = sum(job.in_trouble for job in jobs)
    key = ("jobs-newest", "jobs-one-in-trouble", "jobs-newest-in-trouble")[min(troubled, 2)]
    if not troubled and not jobs[0].reported:
        key = "jobs-newest-training"
    why = word(key, language, count=troubled)
    reported = next((shown_name(job, language) for job in jobs if job.reported), "")
    return word("jobs-told", language, count=len(jobs), job=reported, why=why)


def shown_name(job: JobSummary, language: str) -> str:
    """Return the display name of a job."""
    return word("job-other", language) if job.name == OTHER else job.name


def _cause(job: JobSummary | Start, language: str) -> str:
    """Return the rule of the primary cause, or else the headline, if the headline reports a problem."""
    rule = job.primary if isinstance(job, JobSummary) else job.rule
    if rule is not None:
        return rule
    usual = f"report.{job.verdict}.text"
    if job.verdict in _WELL and (has(job.title, usual) or job.title == render(message(usual), language)):
        return ""
    return shortened(render(job.title, language), _MAX_CAUSE)


def _row(job: JobSummary, language: str) -> Row:
    cells = [
        shown_name(job, language),
        render(job.badge, language),
        _cause(job, language),
        steps_of(job, language),
        clock(job.last_time) if job.last_time is not None else "",
        str(len(job.files)),
    ]
    return Row(cells, job.verdict, job.reported)
