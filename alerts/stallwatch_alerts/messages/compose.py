"""Compose the messages about incidents and alerts: choose and order the facts, and limit the length.

Text from a log, a host, or a user's command is neutralized. The text of a rule page is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from stallwatch_alerts.messages.cause import cause_of, primary_of
from stallwatch_alerts.messages.links import plain
from stallwatch_alerts.messages.ranks import answered, commands, stack
from stallwatch_alerts.neutral import clipped, neutralise
from stallwatch_exporter.incident import UNKNOWN_FAILURE, Incident
from stallwatch_exporter.running.ending import running_sentence
from stallwatch_rules.endings import Ending, ending_name
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.locale import duration_text, language_of, say, templates
from stallwatch_rules.locale import render as in_words
from stallwatch_rules.messages import Message as TextMessage
from stallwatch_rules.messages import Text, has, message
from stallwatch_rules.records import Line
from stallwatch_rules.samples import extract
from stallwatch_rules.stacks.sentences import blamed, names_ranks, sentence

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TITLE_LIMIT = 200
TEXT_LIMIT = 1500
_LINE_LIMIT = 150
_WHY_LIMIT = 280
_EVIDENCE_LINES = 3
_FIXES = 3
_FIX_LIMIT = 280
_CAUSE_LIMIT = 160
_EXCEPTION_LIMIT = 120
_SENTENCE_LIMIT = 400
_DESCRIPTION_LIMIT = 600
_SHOWN_LABELS = ("alertname", "severity", "rank", "host", "rule", "ending", "instance")


class Message(msgspec.Struct, frozen=True):
    """A message for a chat: plain text that contains no markup or links."""

    title: str
    text: str


def render(incident: Incident, language: str, page: RulePage | None, *, ending: bool = True) -> Message:
    """Return the message about an incident that opens or resolves. `page` is the incident's rule page.

    If `ending` is false, the text omits the lines about how the run ended.
    """
    cause = _cause(incident, language, page)
    run = neutralise(incident.run, 80)
    title = _title(incident, language, cause)
    if incident.unwatched:
        title = say(f"alerts.{_unwatched(incident)}", language, title=title)
    text = _text(incident, language, cause, ending)
    # One complete fix is better than two truncated fixes.
    while len(text) > TEXT_LIMIT and len(cause.fixes) > 1:
        cause = replace(cause, fixes=cause.fixes[:-1])
        text = _text(incident, language, cause, ending)
    return Message(clipped(f"[{run}] {title}", TITLE_LIMIT), clipped(text, TEXT_LIMIT))


def render_test(language: str) -> Message:
    """Return the message that ``stallwatch alerts test`` sends."""
    return Message(say("alerts.test-title", language), say("alerts.test-text", language))


def render_alert(
    name: str, labels: Mapping[str, str], annotations: Mapping[str, str], *, over: bool, language: str
) -> Message:
    """Return an alert's summary and description. The titles of Stallwatch's own alerts are translated."""
    title = neutralise(annotations.get("summary", ""), 160)
    key = f"alert-{name}"
    if key in templates("en", "alerts") and (not title or language_of(language) != "en"):
        of = {name: neutralise(labels.get(name, ""), 80) or "?" for name in ("rank", "host")}
        title = say(f"alerts.{key}", language, **of)
    title = title or neutralise(name, 80)
    if over:
        title = say("alerts.alert-over", language, title=title)
    if run := neutralise(labels.get("run", ""), 80):
        title = f"[{run}] {title}"
    shown = [f"    {label}: {neutralise(labels[label], 80)}" for label in _SHOWN_LABELS if labels.get(label)]
    description = neutralise(annotations.get("description", ""), _DESCRIPTION_LIMIT)
    return Message(clipped(title, TITLE_LIMIT), _blocks(description, _lines(*shown)))


def listed(parts: Sequence[str], language: str) -> str:
    """Return the parts as one string, separated by the language's comma."""
    return say("alerts.listed", language, parts=list(parts))


def ending_line(ending: Ending, language: str) -> str:
    """Return one or two lines that describe how a command ended, for the terminal."""
    if ending.kind == "finished":
        line = say("alerts.ended-well", language, duration=ending.seconds)
        return _lines(line, in_words(running_sentence(ending.running) or "", language))
    facts = [in_words(ending_name(ending), language)]
    if ending.exit_code is not None and ending.crash is None:  # a crash's detail explains the exit code 0
        facts.append(say("alerts.exit-code", language, code=ending.exit_code))
    if ending.seconds:
        facts.append(say("alerts.ran-for", language, duration=ending.seconds))
    line = say("alerts.ended", language, ending=listed(facts, language))
    detail = "" if has(ending.detail, "run.exited") else ending.detail  # the line already shows the exit code
    return _lines(line, neutralise(in_words(detail, language), 250))


def _named(kind: str, name: str, language: str) -> str:
    """Return the translation of a value, such as a phase, or the value itself if it has no translation."""
    key = f"{kind}-{name}"
    known = key in templates("en", "alerts")
    return say(f"alerts.{key}", language) if known else neutralise(name, 40)


# ---------------------------------------------------------------- the cause, in the reader's language


class _Cause(msgspec.Struct, frozen=True):
    title: str  #: empty if unknown
    why: str = ""
    fixes: tuple[str, ...] = ()
    names_ranks: bool = False  #: True if the title names the ranks of a stall


def _cause(incident: Incident, language: str, page: RulePage | None) -> _Cause:
    found = cause_of(incident, page)
    clean = neutralise if page is None else plain  # without a page, the text might come from the log
    return _Cause(
        neutralise(in_words(found.title, language), _CAUSE_LIMIT),
        clean(in_words(found.why, language), _WHY_LIMIT),
        tuple(
            _advice(fix, language) or clean(in_words(fix, language), _FIX_LIMIT)
            for fix in found.fixes[:_FIXES]
        ),
        names_ranks(found.title),
    )


def _advice(fix: Text, language: str) -> str:
    """Return the advice about the ranks of a stall in plain text, or "" for other fixes.

    The code position is neutralized, because only this part can contain text from the run, such as filenames.
    """
    if not isinstance(fix, TextMessage) or not fix.id.startswith(("alerts.look-at", "alerts.stall-")):
        return ""
    if fix.id != "alerts.look-at":
        return in_words(fix, language)
    place, advice = (in_words(cast("Text", fix.params[name]), language) for name in ("place", "advice"))
    return say("alerts.look-at", language, place=neutralise(place, _LINE_LIMIT), advice=advice)


# ---------------------------------------------------------------- title


def _title(incident: Incident, language: str, known: _Cause) -> str:
    if incident.kind == "stall":
        title = _stall_title(incident, language)
        blame = blamed(incident.stacks) if incident.stacks is not None else ""
        holding = neutralise(in_words(blame, language), _CAUSE_LIMIT)
        return listed([title, holding], language) if holding and incident.status == "open" else title
    rank = _rank(incident)
    cause = known.title or neutralise(incident.exception, _EXCEPTION_LIMIT)
    named = cause or neutralise(incident.rule, 80)
    if rank is not None and not known.names_ranks:
        of = _on_host(say("alerts.rank", language, rank=rank), incident, language)
        named = say("alerts.in-rank", language, title=named, rank=of)
    if incident.kind == "finding":
        if not _is_news(incident) and not incident.unwatched:
            key = _by_resolution("finding-over", incident)
            return say(key, language, title=named, ending=incident.run_ending)
        harm = _named("harm", incident.harm, language)
        return say("alerts.finding", language, harm=harm, title=named)
    ending = incident.ending
    title = in_words(ending_name(ending), language)
    if incident.stalled_seconds is not None and ending is not None and ending.failed:
        title = say("alerts.after-stall", language, title=title, duration=incident.stalled_seconds)
    if cause:
        return say("alerts.because", language, ending=title, title=named)
    if ending is not None and ending.kind == "failed" and ending.exit_code:
        return say("alerts.with-code", language, ending=title, code=ending.exit_code)
    return title


def _stall_title(incident: Incident, language: str) -> str:
    if incident.status == "resolved":
        duration = _stalled_for(incident)
        if incident.resolution == "recovered":
            return say("alerts.recovered", language, duration=duration)
        key = _by_resolution("stall-over", incident)
        return say(key, language, duration=duration, ending=incident.run_ending)
    lasted = _without_step(incident)
    if incident.phase == "idle":
        return say("alerts.stalled-at-end", language, duration=lasted)
    if incident.phase != "train":
        phase = _named("phase", incident.phase, language)
        return say("alerts.stalled-in-phase", language, duration=lasted, phase=phase)
    step = _step(incident, language)
    return say("alerts.stalled-after" if step else "alerts.stalled", language, duration=lasted, step=step)


def _by_resolution(kind: str, incident: Incident) -> str:
    key = f"{kind}-{incident.resolution.removeprefix('run-')}"
    return f"alerts.{key if key in templates('en', 'alerts') else kind}"


# ---------------------------------------------------------------- text


def _text(incident: Incident, language: str, cause: _Cause, ending: bool) -> str:
    write = _whole if _is_news(incident) else _resolved
    blocks = write(incident, language, cause, ending)
    return _blocks(*blocks, neutralise(in_words(incident.kept, language), 250))


def _is_news(incident: Incident) -> bool:
    """Return whether no earlier message has shown the cause and its fixes."""
    if incident.status == "open":
        return True
    if incident.kind != "ended" and incident.resolution != "unmended":
        return False
    end = incident.resolved_at or incident.updated_at
    # The hosts of a run end at different times. The message about the end is sent after the last host ends.
    earlier = [event for event in incident.history if event.kind != "ended" and event.at < end]
    return not any(event.rule == incident.rule for event in earlier)


def _whole(incident: Incident, language: str, cause: _Cause, ending: bool) -> Iterator[str]:
    stacks = incident.stacks
    known = incident.rule == SILENT_HANG and stacks is not None and bool(stacks.groups)
    yield _what(incident, language)
    if stacks is not None:
        summary = neutralise(in_words(sentence(stacks), language), _SENTENCE_LIMIT)
        yield _lines(summary, *stack(stacks, language))
        yield answered(stacks, incident.run_hosts, language)
    yield _where(incident, language)
    if ending and incident.ending is not None:
        yield ending_line(incident.ending, language)
    note = neutralise(in_words(incident.note, language), 250)
    if not known:  # otherwise the stacks show the cause
        likely = _likely(incident, language, cause) if cause.title else ""
        yield _lines(likely, note, cause.why)
    if incident.background:
        rules = [neutralise(rule, 80) for rule in incident.background]
        yield say("alerts.also-seen", language, rules=listed(rules, language))
    evidence = incident.evidence or (incident.primary.evidence if incident.primary else [])
    lines = [in_words(line, language) for line in evidence if not known or _is_other_output(line)]
    # Chats that interpret Markdown show lines with four leading spaces as literal text. Other chats show them
    # unchanged.
    last = [line for line in lines if line.strip()][-_EVIDENCE_LINES:]
    if last:
        shown = (f"    {neutralise(line, _LINE_LIMIT)}" for line in last)
        yield _lines(say("alerts.last-output" if known else "alerts.evidence", language), *shown)
    if cause.fixes:
        numbered = (f"{number}. {fix}" for number, fix in enumerate(cause.fixes, 1))
        yield _lines(say("alerts.fixes", language), *numbered)
    typed = commands(incident, explain=incident.rule == UNKNOWN_FAILURE)
    if typed:
        yield _lines(say("alerts.look", language), *(f"    {command}" for command in typed))


def _is_other_output(line: Text) -> bool:
    """Return whether a piece of evidence is a log line that is not about a step."""
    return isinstance(line, str) and extract(Line(line, "", 0)) is None


def _likely(incident: Incident, language: str, cause: _Cause) -> str:
    harm = _named("harm", incident.harm, language)
    rule = neutralise(incident.rule, 80)
    return say("alerts.cause", language, title=cause.title, rule=rule, harm=harm)


def _resolved(incident: Incident, language: str, cause: _Cause, ending: bool) -> Iterator[str]:
    if incident.kind == "stall" and incident.resolution == "recovered":
        yield say("alerts.recovered-sentence", language)
    elif incident.ending is None or incident.watch_ended:
        key = "alerts.is-over-watch-ended" if incident.watch_ended else _by_resolution("is-over", incident)
        over = message(key, duration=_stalled_for(incident))
        if incident.kind != "ended" and incident.resolved_at is not None:  # the end of a run has no duration
            lasted = f"{_unwatched(incident)}-after" if incident.unwatched else "lasted"
            over += message(f"alerts.{lasted}", duration=_stalled_for(incident))
        yield in_words(over, language)
    title = cause.title or neutralise(incident.exception, _EXCEPTION_LIMIT)
    if not title and incident.stacks is not None:
        title = neutralise(in_words(sentence(incident.stacks), language), _SENTENCE_LIMIT)
    yield _lines(
        _where(incident, language), say("alerts.stall-cause", language, title=title) if title else ""
    )
    if ending and incident.ending is not None and not incident.watch_ended:
        yield ending_line(incident.ending, language)


def _unwatched(incident: Incident) -> str:
    """Return the key of the text for an incident that was closed because no agent watches its run."""
    return "watch-ended" if incident.watch_ended else "unwatched"


def _what(incident: Incident, language: str) -> str:
    if incident.kind != "stall":
        return ""
    threshold = incident.threshold_seconds
    kind = "-learning" if incident.learning else "-at-floor" if incident.at_floor else ""
    if threshold is None:
        kind = "-plain"
    elif incident.phase == "init":  # a starting run has no step interval yet
        kind = "-start"
    text = message(
        f"alerts.stall-sentence{kind}", duration=_without_step(incident), threshold=threshold or 0.0
    )
    if incident.step is not None:
        last = datetime.fromtimestamp(incident.quiet_since).astimezone()
        text += message("alerts.last-step", when=last.strftime("%H:%M:%S %Z"))
    return in_words(text, language)


def _where(incident: Incident, language: str) -> str:
    run, host = neutralise(incident.run, 80), neutralise(incident.host, 80)
    facts = []
    rank, stacks = _rank(incident), incident.stacks
    if rank is not None:
        pid = stacks.pids.get(rank) if stacks is not None else None
        named = say("alerts.rank" if pid is None else "alerts.rank-pid", language, rank=rank, pid=pid or 0)
        facts.append(_on_host(named, incident, language))
    primary = primary_of(incident)
    own = primary.step if primary is not None and primary.rank == rank and incident.kind == "stall" else None
    behind = own is not None and own != incident.step  # the rank stopped at an earlier step than the run
    if step := _step(replace(incident, step=own) if behind else incident, language):
        facts.append(step)
    facts.append(_named("phase", incident.phase, language))
    if incident.last_loss is not None and not behind:
        facts.append(say("alerts.last-loss", language, loss=f"{incident.last_loss:.5g}"))
    first = say("alerts.on-host" if host else "alerts.run", language, run=run, host=host)
    if incident.hosts:
        every = {*incident.hosts, *stacks.hosts, *stacks.silent} if stacks is not None else incident.hosts
        count = max(len(every), incident.run_hosts)
        if count > 1:
            first = say("alerts.on-hosts", language, run=run, count=count)
    return _lines(first, say("alerts.place", language, facts=listed(facts, language)))


def _on_host(rank: str, incident: Incident, language: str) -> str:
    """Return text that names a rank and, in a multi-host run, the rank's host."""
    if not (incident.hosts and incident.host):
        return rank
    return say("alerts.rank-on", language, rank=rank, host=neutralise(incident.host, 80))


def _blocks(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _rank(incident: Incident) -> int | None:
    primary = primary_of(incident)
    return primary.rank if incident.rank is None and primary is not None else incident.rank


def _step(incident: Incident, language: str) -> str:
    if incident.step is None:
        return ""
    total = incident.total_steps or 0
    return say("alerts.step-of" if total else "alerts.step", language, step=incident.step, total=total)


def _without_step(incident: Incident) -> float | TextMessage:
    """Return the duration of an open stall. If the threshold rounds to the same text, add "more than"."""
    stalled, threshold = _stalled_for(incident), incident.threshold_seconds
    reads_alike = threshold is not None and duration_text(stalled) == duration_text(threshold)
    return message("alerts.more-than", duration=stalled) if reads_alike else stalled


def _stalled_for(incident: Incident) -> float:
    end = incident.resolved_at if incident.resolved_at is not None else incident.updated_at
    stalled = incident.stalled_seconds or 0.0
    if stalled and incident.status == "open" and not incident.unwatched:
        return stalled  # the incident might have opened earlier, as a warning
    return max(stalled, end - incident.opened_at)
