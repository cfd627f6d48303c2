"""Compose the verdict at the top of the Run page: a headline, followed by cause, impact, and fixes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stallwatch_alerts.messages.cause import cause_of, is_located, primary_of
from stallwatch_dashboard import formats
from stallwatch_dashboard.data.overview import RunRow, began, lasted
from stallwatch_dashboard.words import Reader, Say
from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident
from stallwatch_rules.endings import interruption
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.messages import Text, has, message, with_params, without_sentence
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.phrases import (
    DOUBTFUL,
    ENDED_WITH_MESSAGE,
    is_cause_uncertain,
    next_steps,
    primary_note,
    where,
)
from stallwatch_rules.report.phrases import headline as report_headline
from stallwatch_rules.stacks.concluding import is_about_stacks
from stallwatch_rules.stacks.sentences import bare_title, place_of, sentence, stacks_file
from stallwatch_rules.text.digest import fold_ranks

Level = Literal["critical", "warning", "good", "quiet"]
_FEW_HOSTS, _LONGEST_RANKS = 6, 60  #: maximum number of listed hosts; maximum length of a list of ranks


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run as plain text. The code that draws the verdict escapes the text for Markdown."""

    level: Level
    headline: str
    facts: tuple[str, ...] = ()
    cause: str = ""  #: the rule's title, or an exception; empty if the cause is unknown
    why: str = ""
    place: str = ""  #: one sentence about the ranks' positions in the code
    note: str = ""  #: the impact of the problem on this run
    fixes: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    page: RulePage | None = None  #: the rule's page, if known


def of_run(
    row: RunRow,
    pages: Mapping[str, RulePage],
    reader: Reader,
    last_step_at: float | None,
) -> Verdict:
    headline, level = _headline(row, pages, reader, last_step_at)
    if row.incident is not None:
        return _with_incident(level, headline, row, row.incident, pages, reader)
    facts = _exit(row, reader)
    if row.state == "waiting" and row.alarm_at is not None:
        facts.append(reader.say("is_waiting_why", reader.clock(row.alarm_at)))
    if row.ended_early:
        facts.append(reader.say("is_finished_early_why"))
    return Verdict(level, headline, tuple(facts))


def of_incident(incident: Incident, pages: Mapping[str, RulePage], reader: Reader) -> Verdict:
    """Return the verdict on a single incident. It does not contain other facts about the incident's run."""
    row = RunRow(incident.run, "stalled", ended_at=incident.updated_at if incident.kind == "ended" else None)
    title = f"{incident.run}: {describe_state(incident, reader)}"
    if incident.kind == "ended":
        title = _with_doubt(title, incident, reader.say)
    level = _OF_SEVERITIES[incident.severity] if incident.status == "open" else "quiet"
    return _with_incident(level, title, row, incident, pages, reader)


def of_diagnosis(found: Diagnosis, pages: Mapping[str, RulePage], reader: Reader) -> Verdict:
    level: Level = _OF_VERDICTS[found.verdict]
    headline = reader.say(f"verdict_{found.verdict}")
    uncertain = is_cause_uncertain(found)
    if uncertain:
        headline = reader.say("cause_uncertain", reader.say("verdict_failed"))
    facts: tuple[str, ...] = (reader.render(found.ending),) if found.ending else ()
    primary = found.primary
    if primary is None:
        behind = bool(found.progress.behind) and not found.unknown and found.interrupted_by != "user"
        if not uncertain and (behind or found.verdict in ("interrupted", "unfinished", "no-evidence")):
            headline = reader.render(report_headline(found))
        last, total = found.progress.last_step, found.progress.total_steps
        if found.verdict == "finished" and found.progress.stops_early:
            level, headline = "quiet", _finished_early(last, total, reader.say)
            if not any(has(note, "diagnosis.finished-early") for note in found.notes):
                facts += (reader.say("is_finished_early_why"),)
        if behind and not found.in_trouble:
            level = "warning"
        if not uncertain:
            return Verdict(level, headline, facts)
        closing = [note for note in found.notes if has(note, ENDED_WITH_MESSAGE)]
        fixes = tuple(map(reader.render, next_steps(found.unknown[0]) if found.unknown else closing))
        return Verdict(level, headline, facts, cause=reader.render(report_headline(found)), fixes=fixes)
    return Verdict(
        level=level,
        headline=headline,
        facts=(*facts, where(found, reader.language)),
        cause=reader.render(primary.title),
        why=reader.render(primary.why),
        note=reader.render(primary_note(found)),
        fixes=tuple(map(reader.render, primary.fixes)),
        evidence=tuple(map(reader.render, primary.evidence)),
        page=pages.get(primary.rule),
    )


_OF_VERDICTS: Mapping[str, Level] = {
    "failed": "critical",
    "stalled": "critical",
    "unknown-failure": "critical",
    "degraded": "warning",
    "interrupted": "quiet",
    "finished": "good",
    "unfinished": "warning",
    "healthy": "good",
    "no-evidence": "quiet",
    "no-training-log": "quiet",
}


_OF_SEVERITIES: Mapping[str, Level] = {"critical": "critical", "warning": "warning", "info": "quiet"}


def describe_state(incident: Incident, reader: Reader) -> str:
    """Return the state of the incident: open, resolved, or not resolved before its run ended."""
    if incident.outlasted or incident.unwatched:
        return reader.render(incident.closing)
    return reader.say("open" if incident.status == "open" else "resolved")


def title_of(incident: Incident, page: RulePage | None, reader: Reader) -> str:
    """Return the title of the incident's cause, with the rank and the position in the code.

    If the cause is unknown, return the exception. If there is no exception, return a phrase for an unknown
    cause.
    """
    title = reader.render(cause_of(incident, page).title)
    return title or rule_name(incident.rule, reader.say, incident.exception)


def rule_name(rule: str, say: Say, exception: str = "") -> str:
    """Return the rule's ID. If there is no rule, return the exception, or a phrase for an unknown cause."""
    return exception or say("unknown_cause") if rule == UNKNOWN_FAILURE else rule


#: Level of each state, for runs that ended without an open incident.
_OVER: Mapping[str, Level] = {
    "finished": "good",
    "interrupted": "quiet",
    "unwatched": "quiet",
    "failed": "critical",
}


def _headline(
    row: RunRow, pages: Mapping[str, RulePage], reader: Reader, last_step_at: float | None
) -> tuple[str, Level]:
    incident, say, now = row.incident, reader.say, reader.now
    step = formats.steps(row.step, row.total_steps)
    if row.state == "stale":
        if incident is not None and incident.kind == "stall" and row.seen:
            return say("is_stale_stalled", reader.clock(row.seen)), "warning"
        return say("is_stale", reader.seconds(max(0.0, now - row.seen) if row.seen else None)), "warning"
    if (level := _OVER.get(row.state)) is not None:
        left = incident is not None and (incident.status == "open" or incident.resolution == "unmended")
        troubled = left if row.state == "finished" else incident is not None and row.state != "failed"
        key = f"is_{row.state}" if row.step is not None else f"is_{row.state}_unnumbered"
        if row.ended_early:
            return _finished_early(row.step, row.total_steps, say), "warning" if troubled else "quiet"
        headline = say(key, step, reader.render(interruption(row.ending)))
        if row.state == "failed" and incident is not None:
            headline = _with_doubt(headline, incident, say)
        return headline[:1].upper() + headline[1:], "warning" if troubled else level
    if row.state == "stalled":
        since = last_step_at or now
        if incident is not None and (incident.kind == "stall" or incident.stalled_since is not None):
            since = incident.quiet_since
        return say("is_stalled", reader.seconds(max(0.0, now - since))), "critical"
    if row.state == "degraded":
        return say("is_degraded"), "warning"
    if incident is not None:
        return title_of(incident, pages.get(incident.rule), reader), _OF_SEVERITIES[incident.severity]
    if row.state == "starting":
        return say("is_starting"), "quiet"
    last_at = last_step_at or row.progressed_at
    ago = max(0.0, now - last_at) if last_at else None
    if row.state == "waiting":
        unnumbered = "_unnumbered" if row.step is None else ""
        return say(f"is_waiting{unnumbered}", reader.seconds(ago), step), "warning"
    if row.step is None:
        return say("all_well_unnumbered", formats.number(row.loss), reader.seconds(ago)), "good"
    return say("all_well", step, reader.seconds(ago)), "good"


def _finished_early(step: float | None, total: float | None, say: Say) -> str:
    return say("is_finished_early", formats.integer(step), formats.integer(total))


def _with_doubt(headline: str, incident: Incident, say: Say) -> str:
    """Return the headline of a failure. If the cause is unknown or uncertain, the headline says so."""
    primary = primary_of(incident)
    if incident.rule == UNKNOWN_FAILURE:
        return say("cause_uncertain" if incident.exception else "cause_unknown", headline)
    if primary is not None and primary.confidence < DOUBTFUL:
        return say("cause_uncertain", headline)
    return headline


def _with_incident(
    level: Level,
    headline: str,
    row: RunRow,
    incident: Incident,
    pages: Mapping[str, RulePage],
    reader: Reader,
) -> Verdict:
    say = reader.say
    stacks = incident.stacks
    page = pages.get(incident.rule)
    cause = cause_of(incident, page)
    title, fixes = title_of(incident, page, reader), list(cause.fixes)
    unknown = incident.rule == UNKNOWN_FAILURE
    if unknown and incident.folder:
        fixes.append(message("alerts.unknown-fix", folder=shlex.quote(incident.folder)))
    note = _note(incident, reader)
    place: Text = sentence(stacks) if stacks is not None else ""
    evidence = incident.evidence or (incident.primary.evidence if incident.primary else ())
    evidence = [line for line in evidence if line != place and not (stacks and is_about_stacks(line))]
    if stacks is not None and is_located(stacks):
        note = without_sentence(note, "diagnosis.nothing-says-why")
        if incident.rule == SILENT_HANG and not stacks.odd and place_of(stacks):
            # The first fix already names the position in the code, so the title and the place do not.
            title, place = reader.render(bare_title(cause.title)), ""
    if stacks is not None and stacks.file:
        fixes.append(message("diagnosis.all-stacks", file=stacks.file))
    elif stacks is not None and (stored := stacks_file(stacks))[1]:
        fixes.append(message("diagnosis.all-stacks-on", host=stored[0], file=stored[1]))
    facts = _exit(row, reader)
    if row.ended_at is None:
        still = "no_progress_for" if incident.kind == "stall" else "open_for"
        duration = say(
            still if incident.status == "open" else "lasted", reader.seconds(lasted(incident, reader.now))
        )
        facts.append(say("since", reader.clock(began(incident)), duration))
    else:
        facts.append(say("ended_at", reader.clock(row.ended_at)))
    if incident.step is not None and (row.ended_at is None or incident.step != row.step):
        facts.append(say("at_step", formats.steps(incident.step, incident.total_steps)))
    if incident.rank is not None:
        on_host = incident.hosts and incident.host
        facts.append(say("rank_on", incident.rank, incident.host) if on_host else say("rank", incident.rank))
    facts += _of_hosts(incident, say)
    if incident.attempt:
        facts.append(say("attempt", incident.attempt))
    if incident.threshold_seconds is not None and row.ended_at is None:
        facts.append(say("threshold_is", reader.seconds(incident.threshold_seconds)))
    return Verdict(
        level=level,
        headline=headline,
        facts=tuple(facts),
        cause="" if unknown and not incident.exception else title,
        why=reader.render(cause.why),
        place=reader.render(place),
        note=reader.render(note),
        fixes=tuple(map(reader.render, fixes)),
        evidence=tuple(map(reader.render, evidence)),
        page=page,
    )


def _note(incident: Incident, reader: Reader) -> Text:
    """Return the incident's impact on this run and, for a stall, how long it has lasted."""
    if incident.kind != "stall":
        return incident.note
    values = {"silence": reader.seconds((incident.resolved_at or reader.now) - incident.quiet_since)}
    if incident.threshold_seconds is not None:
        values["threshold"] = reader.seconds(incident.threshold_seconds)
    return with_params(incident.note, **values)


def _of_hosts(incident: Incident, say: Say) -> list[str]:
    """Return facts about a multi-host run: which hosts responded, and the confidence in the blamed rank."""
    if not incident.hosts:
        return []
    stacks = incident.stacks
    if stacks is None:
        return [say("hosts_reported", len(incident.hosts))] if len(incident.hosts) > 1 else []
    silent, answered = stacks.silent, stacks.hosts or incident.hosts
    every = {*answered, *silent}
    count = len(every - {*silent})
    facts = [say("hosts_answered", count, max(len(every), incident.run_hosts))]
    if silent:
        facts.append(name_hosts("hosts_silent", silent, say))
    if stacks.odd and stacks.confidence:
        facts.append(say("blame_confidence", f"{stacks.confidence:.0%}"))
    elif stacks.candidates:
        ranks = fold_ranks(stacks.candidates)
        is_short = len(ranks) <= _LONGEST_RANKS
        named = say("ranks_named", ranks) if is_short else say("many_ranks", len(stacks.candidates))
        facts.append(say("blame_candidates", named))
    return facts


def name_hosts(key: str, hosts: Sequence[str], say: Say) -> str:
    """Return the text for `key` with the hosts' names. If there are many hosts, include only a few names."""
    more, names = len(hosts) - _FEW_HOSTS, say("list_comma").join(hosts[:_FEW_HOSTS])
    return say(f"{key}_more", names, more) if more > 0 else say(key, names)


def _exit(row: RunRow, reader: Reader) -> list[str]:
    if row.state == "stale":
        return [reader.say("is_stale_why")]
    detail = reader.render(row.ending.detail) if row.ending is not None else ""
    return [detail] if detail else []
