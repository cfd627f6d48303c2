"""Provide the phrases that all reports use, as plain text without markup.

The verdict and the headline are messages, so that a row in a table of jobs can store them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch_rules.failures.raised import own_frame
from stallwatch_rules.locale import render, rendered, say
from stallwatch_rules.messages import Message, Text, has, message
from stallwatch_rules.records import (
    Diagnosis,
    Finding,
    HostRanks,
    JobSummary,
    NewLines,
    Primary,
    Progress,
    Start,
    UnknownException,
)
from stallwatch_rules.report.clean import clean_diagnosis
from stallwatch_rules.text.digest import FEW_HOSTS, name_runs, parse_iso, ranks_on, some_ranks, span_of
from stallwatch_rules.text.display import size_text

MAX_HOST_RUNS = 6  #: maximum number of host ranges in a line
#: IDs of the notes that question the whole diagnosis, because the files seem to be from different runs.
DOUBTS = ("diagnosis.other-run-time", "diagnosis.other-run-job", "diagnosis.other-run-total")
ENDED_WITH_MESSAGE = "diagnosis.ended-with-message"  #: ID of the note on a program's last message
DOUBTFUL = 0.5  #: confidence below which a cause is more likely wrong than right
MAX_HEADLINE = 160  #: maximum number of characters of an exception's message


def word(key: str, language: str = "en", **params: str | int | float | Message) -> str:
    """Return the report text for a key."""
    return say(f"report.{key}", language, **params)


def listed(parts: Sequence[str], language: str, by: str = "commas") -> str:
    """Join the parts with the language's commas, or with its semicolons if `by` is ``semicolons``."""
    return say(f"report.listed-{by}", language, parts=list(parts))


def badge(diagnosis: Diagnosis) -> Message:
    """Return the verdict in a few words."""
    return message("report.uncertain" if is_cause_uncertain(diagnosis) else f"report.{diagnosis.verdict}")


def is_cause_uncertain(diagnosis: Diagnosis) -> bool:
    """Return whether a failed run has only a likely cause, which is not confirmed.

    Examples are an exception that no rule explains and a rule whose confidence is low.
    """
    if diagnosis.primary is not None:
        return diagnosis.primary.confidence < DOUBTFUL and diagnosis.verdict in ("failed", "unknown-failure")
    return diagnosis.verdict == "unknown-failure" and (
        bool(diagnosis.unknown) or any(has(note, ENDED_WITH_MESSAGE) for note in diagnosis.notes)
    )


def headline(diagnosis: Diagnosis) -> Text:
    """Return the headline of a report.

    The headline is the title of the primary cause, an exception that matches no rule, or a sentence about the
    run.
    """
    if diagnosis.primary is not None:
        return diagnosis.primary.title
    verdict, progress = diagnosis.verdict, diagnosis.progress
    if verdict == "interrupted" and diagnosis.interrupted_by == "user":
        return message(f"report.interrupted{'-with' if diagnosis.unknown else ''}.text")
    if verdict == "unknown-failure" and diagnosis.unknown:
        return _unknown_headline(diagnosis.unknown[0], diagnosis.hosts)
    closing = next((note for note in diagnosis.notes if has(note, ENDED_WITH_MESSAGE)), None)
    if isinstance(closing, Message):
        return message("report.ended-with-message.text", **closing.params)
    if progress.behind and verdict not in ("failed", "stalled", "degraded"):
        key = "behind-unknown.text" if verdict == "unknown-failure" else "behind.text"
        key = "behind-finished.text" if progress.finished else key
        return message(f"report.{key}", ranks=some_ranks(progress.behind))
    if verdict == "interrupted":
        return message(f"report.asked-to-end{'-with' if diagnosis.unknown else ''}.text")
    if verdict == "unfinished" and progress.last_step is not None:
        last, total = str(progress.last_step), progress.total_steps
        if total:
            return message("report.mid-run-of.text", last=last, total=total)
        return message("report.mid-run-at.text", last=last)
    return message(f"report.{verdict}.text")


def job_title(diagnosis: Diagnosis) -> Text:
    """Return the headline for a table of jobs, without the last step, which has a separate column."""
    title = headline(diagnosis)
    in_mid_run = has(title, "report.mid-run-of.text", "report.mid-run-at.text")
    return message("report.unfinished.text") if in_mid_run else title


def _unknown_headline(unknown: UnknownException, hosts: Sequence[HostRanks]) -> Text:
    what: Text = message("report.traceback-cut")
    if unknown.exception:
        what = exception_in_short(unknown, MAX_HEADLINE)
    if not unknown.ranks:
        return what
    on = {rank: host.host for host in hosts for rank in host.ranks}
    known = on.keys() >= {*unknown.ranks}
    ranks = ranks_on(unknown.ranks, on) if known else some_ranks(unknown.ranks)
    return message("report.of-ranks", what=what, ranks=ranks)


def where(diagnosis: Diagnosis, language: str) -> str:
    """Return the location of the primary cause: its ranks, file, line, step, and time, if known."""
    primary = diagnosis.primary
    if primary is None:
        return ""
    parts = []
    if primary.rank is not None:
        ranks = _ranks_of_primary(primary, diagnosis, language)
        parts.append(word("on-host", language, ranks=ranks, host=primary.host) if primary.host else ranks)
    elif primary.host:
        parts.append(primary.host)
    if primary.file:
        parts.append(f"{primary.file}:{primary.line}" if primary.line else primary.file)
    if primary.step is not None:
        parts.append(f"{word('step', language)} {primary.step}")
    if primary.time is not None:
        parts.append(clock(primary.time))
    return " · ".join(parts)


def _ranks_of_primary(primary: Primary, diagnosis: Diagnosis, language: str) -> str:
    """Return the rank of the primary cause, or all ranks of its finding if none of them was singled out."""
    rank = f"{word('rank', language)} {primary.rank}"
    finding = next((finding for finding in diagnosis.findings if finding.rule == primary.rule), None)
    if finding is None or diagnosis.digest or primary.role != "cause" or len(finding.ranks) < 2:
        return rank
    first = finding.first
    if (first.rank, first.file, first.line) != (primary.rank, primary.file, primary.line):
        return rank  # one rank was singled out: the last rank, or the rank for which other ranks waited
    ranks = ranks_of(finding.ranks, language)
    if primary.rank == min(finding.ranks):
        return ranks
    return word("first-of", language, one=rank, ranks=ranks)


def clock(time: str) -> str:
    """Format an ISO time as ``2026-11-20 23:56:32 UTC``. If the time zone is unknown, omit ``UTC``."""
    shown = time.partition(".")[0].removesuffix("Z").replace("T", " ")
    return f"{shown} UTC" if time.endswith("Z") else shown


def certainty(primary: Primary, language: str) -> str:
    """Return the role, the harm, and the confidence of the primary cause as text."""
    confidence = f"{word('confidence', language)} {primary.confidence:.0%}"
    return listed([word(primary.role, language), word(primary.harm, language), confidence], language)


def ranks_of(ranks: Sequence[int], language: str) -> str:
    """Return text such as ``rank 3`` or ``ranks 0–6, 8``, or an empty string if no rank is known."""
    if not ranks:
        return ""
    return render(some_ranks(ranks), language)


def counted_times(finding: Finding) -> str:
    """Return the number of matches. ``≥ 1024`` means that unread files also contain matches."""
    return f"≥ {finding.count}" if finding.at_least else str(finding.count)


def _on_hosts(ranks: Sequence[int], hosts: Mapping[int, str], language: str) -> str:
    """Return a short description of ranks on many hosts, or an empty string if the run has few hosts."""
    if len({hosts.get(rank) for rank in ranks}) <= FEW_HOSTS or any(rank not in hosts for rank in ranks):
        return ""
    return render(ranks_on(ranks, hosts), language)


def finding_line(
    finding: Finding, primary: Primary | None, language: str, hosts: Mapping[int, str] = MappingProxyType({})
) -> str:
    """Return a line about a finding: its count, ranks, role, harm, and time relative to the primary cause."""
    parts = [listed([word(finding.role, language), word(finding.harm, language)], language)]
    if finding.count > 1:
        parts.append(f"{counted_times(finding)} {word('times', language)}")
    ranks = ranks_of(finding.ranks, language)
    if ranks:
        parts.append(_on_hosts(finding.ranks, hosts, language) or ranks)
    if finding.first.step is not None:
        parts.append(f"{word('step', language)} {finding.first.step}")
    if primary is not None and primary.time is not None and finding.first.time is not None:
        distance = parse_iso(finding.first.time) - parse_iso(primary.time)
        side = "later" if distance > 0 else "earlier"
        parts += [word(side, language, apart=abs(distance))] if abs(distance) >= 1 else []
    return listed(parts, language, "semicolons")


def exception_line(unknown: UnknownException, language: str) -> str:
    """Return the exception with its message or its code, or a note that the log ends before the exception."""
    if not unknown.exception:
        return f"Traceback ({word('frames-cut', language)})"
    return unknown.described


def exception_in_short(unknown: UnknownException | None, limit: int = 120) -> str:
    """Return a title such as ``ValueError: message (train.py:8)``, in which a long message is shortened."""
    if unknown is None or not unknown.exception:
        return ""
    place = own_frame(unknown.frames).partition(" in ")[0].replace("\\", "/").rpartition("/")[2]
    place = f" ({place})" if place else ""
    text = " ".join(exception_line(unknown, "en").split())
    room = max(limit - len(place), limit // 2)
    return (text if len(text) <= room else f"{text[: room - 1].rstrip()}…") + place


def marked_frames(frames: Sequence[str]) -> list[str]:
    """Return the stack frames of an exception, with a mark before the innermost frame of the user's code."""
    innermost = own_frame(frames)
    last = max((at for at, frame in enumerate(frames) if frame == innermost), default=-1)
    return [f"{'▶' if at == last else ' '} {frame}" for at, frame in enumerate(frames)]


def exception_where(unknown: UnknownException, language: str) -> str:
    """Return text that names the ranks that raised an exception and the location of its first occurrence."""
    parts = [ranks_of(unknown.ranks, language), f"{unknown.first.file}:{unknown.first.line}"]
    if unknown.count > 1:
        parts.insert(1, f"{unknown.count} {word('times', language)}")
    return " · ".join(part for part in parts if part)


def next_steps(unknown: UnknownException) -> list[Text]:
    """Return suggestions for an exception that matches no rule. The most specific suggestion comes first."""
    frame, near = own_frame(unknown.frames), unknown.nearest[:1]
    steps: list[Text] = [message("report.next-own-line", frame=frame)] if frame else []
    steps += [unknown.advice] if unknown.advice else []
    return steps + [message("report.next-nearest", rule=page.rule) for page in near]


def nearest_line(unknown: UnknownException, language: str) -> str:
    """Return text such as ``closest match: cuda-oom``, or an empty string if no rule is similar."""
    pages = ", ".join(page.rule for page in unknown.nearest)
    return f"{word('nearest', language)}: {pages}" if pages else ""


def new_line_where(new: NewLines, language: str, hosts: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return the level, count, ranks, and location of a new line."""
    parts = [word(new.level, language)]
    if new.count > 1:
        parts.append(f"{new.count} {word('times', language)}")
    ranks = _on_hosts(new.ranks, hosts, language) or ranks_of(new.ranks, language)
    parts += [ranks, f"{new.first.file}:{new.first.line}"]
    return " · ".join(part for part in parts if part)


def progress_line(diagnosis: Diagnosis, language: str) -> str:
    """Return text such as ``step 0 – 100 of 900, last loss 0.8``, or "" if nothing is known."""
    progress = diagnosis.progress
    parts = []
    if progress.last_step is not None:
        first = "" if progress.first_step in (None, progress.last_step) else f"{progress.first_step} – "
        parts.append(f"{word('step', language)} {first}{steps_of(progress, language)}")
    if progress.last_loss is not None:
        parts.append(f"{word('last-loss', language)} {progress.last_loss:g}")
    if progress.stalled_after_step is not None:
        parts.append(f"{word('stalled-after', language)} {progress.stalled_after_step}")
    if progress.finished:
        parts.append(word("reached-its-end", language))
    return listed(parts, language)


def steps_of(run: Progress | JobSummary | Start, language: str) -> str:
    """Return the last step as ``100 of 900`` (``100`` if the total is unknown), or "" if no step is known."""
    if run.last_step is None:
        return ""
    return str(run.last_step) + (f" {word('of', language)} {run.total_steps}" if run.total_steps else "")


def hosts_line(diagnosis: Diagnosis, language: str) -> str:
    """Return text such as ``128: n0–n75 (ranks 0–607), …``, or "" if the run has only one host."""
    if not diagnosis.hosts:
        return ""
    parts = []
    for logged in (True, False):
        ranks = {host.host: host.ranks for host in diagnosis.hosts if host.logged is logged}
        runs = name_runs(ranks)
        shown = [
            f"{span_of(run)} ({ranks_of([rank for name in run for rank in ranks[name]], language)})"
            for run in runs[:MAX_HOST_RUNS]
        ]
        if len(runs) > MAX_HOST_RUNS:
            shown.append("…")
        if shown:
            parts.append(", ".join(shown) if logged else word("no-log-of", language, hosts=", ".join(shown)))
    return f"{len(diagnosis.hosts)}: {'; '.join(parts)}"


def environment_line(diagnosis: Diagnosis) -> str:
    """Return the known versions, such as ``torch 2.6.0, deepspeed 0.16.4``."""
    return ", ".join(f"{name} {version}" for name, version in diagnosis.environment.items())


def stats_line(diagnosis: Diagnosis, language: str) -> str:
    """Return the numbers of files, lines, and bytes that were read, and the duration in seconds."""
    stats = diagnosis.stats
    files = word("file" if stats.files == 1 else "files", language)
    lines = word("line" if stats.lines == 1 else "lines", language)
    parts = [f"{stats.files} {files}", f"{stats.lines:,} {lines}", size_text(min(stats.bytes, 1 << 64))]
    return listed([*parts, *([f"{stats.seconds:.1f} s"] if stats.seconds else [])], language)


def primary_note(diagnosis: Diagnosis) -> Text:
    """If an assessor assessed the harm of the primary cause, return the evidence for the harm."""
    primary = diagnosis.primary
    notes = (finding.note for finding in diagnosis.findings if primary and finding.rule == primary.rule)
    return next(notes, "")


class Shown(NamedTuple):
    """A diagnosis prepared for a report: secrets are removed, and all text is in one language."""

    diagnosis: Diagnosis  #: the diagnosis with all messages as text
    badge: str
    headline: str
    doubts: list[str]  #: notes that question the whole diagnosis; ``diagnosis.notes`` omits them
    note: str  #: evidence for the impact of the primary cause
    where: str  #: location of the primary cause
    certainty: str  #: role, harm, and confidence of the primary cause
    others: list[tuple[Finding, str]]  #: the other findings, with the text that describes each finding
    facts: list[tuple[str, str]]  #: heading and text of each known fact
    stats: str


def shown(diagnosis: Diagnosis, language: str) -> Shown:
    """Prepare the diagnosis for a report in one language."""
    diagnosis = clean_diagnosis(diagnosis)
    doubts = [note for note in diagnosis.notes if has(note, *DOUBTS)]
    diagnosis = replace(diagnosis, notes=[note for note in diagnosis.notes if note not in doubts])
    words = rendered(diagnosis, language)
    primary = words.primary
    others = [finding for finding in words.findings if primary is None or finding.rule != primary.rule]
    hosts = {rank: host.host for host in words.hosts for rank in host.ranks}
    facts = {
        "hosts": hosts_line(words, language),
        "progress": progress_line(words, language),
        "environment": environment_line(words),
        "ending": render(words.ending),
    }
    return Shown(
        words,
        render(badge(diagnosis), language),
        render(headline(diagnosis), language),
        [render(doubt, language) for doubt in doubts],
        render(primary_note(words)),
        where(words, language),
        certainty(primary, language) if primary is not None else "",
        [(finding, finding_line(finding, primary, language, hosts)) for finding in others],
        [(word(key, language), line) for key, line in facts.items() if line],
        stats_line(words, language),
    )
