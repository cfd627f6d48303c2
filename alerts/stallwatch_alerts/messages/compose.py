"""One composition for every language: which facts a message holds, in which order, and how long it may be.

What comes from a log, a host or a user's command is neutralised; what comes from a rule page is our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stallwatch_alerts.messages.languages import words_of
from stallwatch_alerts.messages.plain import plain
from stallwatch_alerts.messages.ranks import commands, pid_of, stack, who
from stallwatch_alerts.messages.remedies import remedy
from stallwatch_alerts.messages.words import Words
from stallwatch_alerts.neutral import neutralise, shorten
from stallwatch_exporter.incident import RANK_GONE, Ending, Incident
from stallwatch_exporter.running.ending_words import detail_in, running_sentence
from stallwatch_rules.judgements.conclusions import SILENT_HANG
from stallwatch_rules.pages.fixes import fixes_for
from stallwatch_rules.pages.placeholders import why_of
from stallwatch_rules.records import Primary
from stallwatch_rules.report.reader import speaks, told_in
from stallwatch_rules.stacks.concluding import advice_in
from stallwatch_rules.stacks.words import behind, lead, sentence
from stallwatch_rules.text.retelling import retold

if TYPE_CHECKING:
    from stallwatch_rules.pages.page import RulePage

TITLE_LIMIT = 200
TEXT_LIMIT = 1500
_LINE_LIMIT = 150
_WHY_LIMIT = 280
_EVIDENCE_LINES = 3
_FIXES = 3
_FIX_LIMIT = 280
_CAUSE_LIMIT = 120  # of a title alone, so that no lead pushes it out
_LEAD_LIMIT = 160
_SENTENCE_LIMIT = 400


class Message(msgspec.Struct, frozen=True):
    """What a chat gets: plain text, no markup, no links."""

    title: str
    text: str


def render(incident: Incident, language: str, page: RulePage | None) -> Message:
    """The message of an incident as it opens or resolves; `page` is that of its rule, if there is one."""
    words = words_of(language)
    incident = replace(incident, note=retold(incident.note, language))
    cause = _cause(incident, language, page)
    if (primary := _primary(incident)) is not None:
        leading = neutralise(lead(primary.apart, language), _LEAD_LIMIT)
        cause = replace(cause, led=behind(leading, cause.title, language))
    cause = _with_remedy(cause, incident, language)
    run = neutralise(incident.run, 80)
    said = _title(incident, words, cause.title or neutralise(incident.exception, _CAUSE_LIMIT))
    title = f"[{run}] {words.unwatched.format(title=said) if incident.unwatched else said}"
    text = _text(incident, words, cause)
    while len(text) > TEXT_LIMIT and len(cause.fixes) > 1:  # one whole fix is worth more than two halves
        cause = replace(cause, fixes=cause.fixes[:-1])
        text = _text(incident, words, cause)
    return Message(shorten(title, TITLE_LIMIT), shorten(text, TEXT_LIMIT))


def render_test(language: str) -> Message:
    """The message of ``stallwatch alerts test``."""
    words = words_of(language)
    return Message(words.test_title, words.test_text)


def ending_line(ending: Ending, language: str) -> str:
    """How a command ended, in one or two lines, for the terminal."""
    return _how_it_ended(ending, words_of(language))


# ---------------------------------------------------------------- the cause, in the reader's language


class _Cause(msgspec.Struct, frozen=True):
    rule: str
    title: str  #: empty where nothing is known
    why: str = ""
    fixes: tuple[str, ...] = ()
    led: str = ""  #: the title behind where the odd rank is, if that is known, else the title


def _cause(incident: Incident, language: str, page: RulePage | None) -> _Cause:
    """From the diagnosis where it is in this language (its fixes know the versions), else from the page."""
    primary = _primary(incident)
    if primary is not None and page is not None and not speaks(primary, language):
        advice = advice_in(primary, incident.stacks, language)
        primary = told_in(primary, page, language, incident.stacks)
        if advice is not None:
            primary = replace(primary, why=advice[0], fixes=advice[1])
    if primary is not None:
        if page is None:  # no page stands behind these words: they may be the log's
            fixes = tuple(neutralise(fix, _FIX_LIMIT) for fix in primary.fixes[:_FIXES])
            return _Cause(
                primary.rule,
                neutralise(primary.title, _CAUSE_LIMIT),
                neutralise(primary.why, _WHY_LIMIT),
                fixes,
            )
        fixes = tuple(plain(fix, _FIX_LIMIT) for fix in primary.fixes[:_FIXES])
        return _Cause(
            primary.rule, neutralise(primary.title, _CAUSE_LIMIT), plain(primary.why, _WHY_LIMIT), fixes
        )
    if page is None:
        if incident.rule != RANK_GONE:
            return _Cause(incident.rule, "")
        words = words_of(language)
        return _Cause(RANK_GONE, words.rank_gone, words.rank_gone_why, words.rank_gone_fixes)
    return _Cause(
        page.id,
        (language.startswith("zh") and page.title_zh) or page.title,
        plain(why_of(page, language), _WHY_LIMIT),
        tuple(plain(fix, _FIX_LIMIT) for fix in _page_fixes(page, language)[:_FIXES]),
    )


def _with_remedy(cause: _Cause, incident: Incident, language: str) -> _Cause:
    """With what to do about the rank that holds up the run, before advice for any run."""
    if incident.stacks is None or incident.rule != SILENT_HANG:
        return cause
    first = remedy(incident.stacks, language)
    looked = plain(sentence(incident.stacks, language), _FIX_LIMIT)[:40]  # the message says it already
    fixes = [fix for fix in cause.fixes if not (looked and looked in fix)]
    return replace(cause, fixes=tuple([first, *fixes] if first else fixes)[:_FIXES])


def _page_fixes(page: RulePage, language: str) -> list[str]:
    return fixes_for(page, {}, language) or fixes_for(page, {}, "en")


# ---------------------------------------------------------------- title


def _title(incident: Incident, words: Words, cause: str) -> str:
    if incident.kind == "stall":
        title = _stall_title(incident, words)
        holding = who(incident.stacks, words.language) if incident.stacks is not None else ""
        return words.comma.join((title, holding)) if holding and incident.status == "open" else title
    rank = _rank(incident)
    named = cause or neutralise(incident.rule, 80)
    if rank is not None:
        named = words.in_rank.format(title=named, rank=words.rank.format(rank=rank))
    if incident.kind == "finding":
        if not _is_news(incident) and not incident.unwatched:
            return words.with_run.get(incident.resolution, words.finding_over).format(title=named)
        return words.finding.format(harm=words.harms.get(incident.harm, incident.harm), title=named)
    title = _ending_title(incident.ending, words)
    if incident.stalled_seconds is not None and incident.ending is not None and incident.ending.failed:
        title = words.after_stall.format(title=title, duration=words.duration(incident.stalled_seconds))
    if cause:
        return words.because.format(ending=title, title=named)
    ending = incident.ending
    if ending is not None and ending.kind == "failed" and ending.exit_code:
        return words.with_code.format(ending=title, code=ending.exit_code)
    return title


def _stall_title(incident: Incident, words: Words) -> str:
    duration = words.duration(_stalled_for(incident))
    if incident.status == "resolved":
        if incident.resolution == "recovered":
            return words.recovered.format(duration=duration)
        return words.over.get(incident.resolution, words.over[""]).format(duration=duration)
    if incident.phase != "train":
        phase = words.phases.get(incident.phase, neutralise(incident.phase, 40))
        return words.stalled_in_phase.format(duration=duration, phase=phase)
    step = _step(incident, words)
    template = words.stalled_after if step else words.stalled
    return template.format(duration=duration, step=step)


def _ending_title(ending: Ending | None, words: Words) -> str:
    kind = ending.kind if ending else "unknown"
    if ending is not None and kind == "killed" and not ending.signal:
        kind = "failed"
    return words.endings[kind].format(
        signal=ending.signal if ending else "",
        duration=words.duration(ending.seconds if ending else 0),
    )


# ---------------------------------------------------------------- text


def _text(incident: Incident, words: Words, cause: _Cause) -> str:
    tell = _whole if _is_news(incident) else _resolved
    return "\n\n".join(block for block in tell(incident, words, cause) if block)


def _is_news(incident: Incident) -> bool:
    """Whether no earlier message has named this cause and what to do about it."""
    if incident.status == "open":
        return True
    if incident.kind != "ended" and incident.resolution != "unmended":
        return False
    end = incident.resolved_at or incident.updated_at
    return not any(event.rule == incident.rule and event.at < end for event in incident.history)


def _whole(incident: Incident, words: Words, cause: _Cause) -> Iterator[str]:
    stacks = incident.stacks
    known = incident.rule == SILENT_HANG and stacks is not None and bool(stacks.groups)
    yield _what(incident, words)
    if stacks is not None:
        told = neutralise(sentence(stacks, words.language), _SENTENCE_LIMIT)
        yield _lines(told, *stack(stacks, words.language))
    yield _where(incident, words)
    if incident.ending is not None:
        yield _how_it_ended(incident.ending, words)
    if known:  # the stacks are the cause
        yield ""
    elif cause.title:
        harm = words.harms.get(incident.harm, incident.harm)
        line = words.cause.format(title=cause.led or cause.title, rule=neutralise(cause.rule, 80), harm=harm)
        yield _lines(line, neutralise(incident.note, 250), cause.why)
    else:
        yield neutralise(incident.note, 250)
    evidence = incident.evidence or (incident.primary.evidence if incident.primary else [])
    # Indented by four: literal text wherever Markdown is read, plain where it is not.
    if incident.background:
        yield words.also_seen.format(rules=words.comma.join(incident.background))
    last = [line for line in evidence if line.strip()][-_EVIDENCE_LINES:]
    shown = [f"    {neutralise(line, _LINE_LIMIT)}" for line in last]
    yield _lines(words.evidence, *shown) if shown and not known else ""
    if cause.fixes:
        yield _lines(words.fixes, *(f"{number}. {fix}" for number, fix in enumerate(cause.fixes, 1)))
    yield _look(incident, words)


def _look(incident: Incident, words: Words) -> str:
    typed = commands(incident.stacks if incident.status == "open" else None, incident.folder)
    return _lines(words.look, *(f"    {command}" for command in typed)) if typed else ""


def _resolved(incident: Incident, words: Words, cause: _Cause) -> Iterator[str]:
    if incident.kind == "stall" and incident.resolution == "recovered":
        yield words.recovered_sentence
    elif incident.ending is None:
        over = words.over_sentence.get(incident.resolution, words.over_sentence[""])
        between = words.comma.strip(",，")  # a space where the language has one between sentences
        yield between.join((over, _lasted(incident, words))).strip()
    told = cause.led or cause.title
    if not told and incident.stacks is not None:
        told = neutralise(sentence(incident.stacks, words.language), _SENTENCE_LIMIT)
    yield _lines(_where(incident, words), words.stall_cause.format(title=told) if told else "")
    if incident.ending is not None:
        yield _how_it_ended(incident.ending, words)


def _lasted(incident: Incident, words: Words) -> str:
    """How long a problem was there. An ending has no duration, and the run's own is told below."""
    if incident.kind == "ended" or incident.resolved_at is None:
        return ""
    lasted = words.unwatched_after if incident.unwatched else words.lasted
    return lasted.format(duration=words.duration(_stalled_for(incident)))


def _what(incident: Incident, words: Words) -> str:
    if incident.kind != "stall":
        return ""
    stalled = _stalled_for(incident)
    duration = words.duration(stalled)
    template = words.stall_sentence_learning if incident.learning else words.stall_sentence
    if incident.threshold_seconds is None:
        template = words.stall_sentence_plain
    elif incident.phase == "init":  # a run that starts has no rhythm yet
        template = words.stall_sentence_start
    threshold = words.duration(incident.threshold_seconds or 0.0)
    if incident.threshold_seconds is not None and duration == threshold:  # both are rounded alike
        duration = words.more_than.format(duration=duration)
    said = template.format(duration=duration, threshold=threshold)
    if incident.step is None:
        return said
    last = datetime.fromtimestamp(incident.updated_at - (incident.stalled_seconds or 0.0)).astimezone()
    return words.since.format(sentence=said, when=last.strftime("%H:%M:%S %Z"))


def _where(incident: Incident, words: Words) -> str:
    run, host = neutralise(incident.run, 80), neutralise(incident.host, 80)
    first = words.on_host.format(run=run, host=host) if host else words.run.format(run=run)
    facts = []
    rank = _rank(incident)
    pid = pid_of(incident.stacks, rank)
    if rank is not None:
        facts.append((words.rank if pid is None else words.rank_pid).format(rank=rank, pid=pid))
    if step := _step(incident, words):
        facts.append(step)
    facts.append(words.phases.get(incident.phase, neutralise(incident.phase, 40)))
    if incident.last_loss is not None:
        facts.append(words.last_loss.format(loss=f"{incident.last_loss:.5g}"))
    return _lines(first, words.place + words.comma.join(facts))


def _how_it_ended(ending: Ending, words: Words) -> str:
    facts = [_ending_title(ending, words)]
    if ending.kind == "finished":
        return _lines(words.ended.format(ending=facts[0]), running_sentence(ending.running, words.language))
    if ending.exit_code is not None:
        facts.append(words.exit_code.format(code=ending.exit_code))
    if ending.seconds:
        facts.append(words.ran_for.format(duration=words.duration(ending.seconds)))
    line = words.ended.format(ending=words.comma.join(facts))
    return _lines(line, neutralise(detail_in(ending, words.language), 250))


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def _rank(incident: Incident) -> int | None:
    primary = _primary(incident)
    return primary.rank if incident.rank is None and primary is not None else incident.rank


def _primary(incident: Incident) -> Primary | None:
    """The diagnosis, if it is about this rule: a stall may have nothing to do with what else was found."""
    primary = incident.primary
    return primary if primary is not None and primary.rule == incident.rule else None


def _step(incident: Incident, words: Words) -> str:
    if incident.step is None:
        return ""
    if incident.total_steps:
        return words.step_of.format(step=incident.step, total=incident.total_steps)
    return words.step.format(step=incident.step)


def _stalled_for(incident: Incident) -> float:
    end = incident.resolved_at if incident.resolved_at is not None else incident.updated_at
    stalled = incident.stalled_seconds or 0.0
    if stalled and incident.status == "open" and not incident.unwatched:
        return stalled  # the episode may have begun before, with a warning
    return max(stalled, end - incident.opened_at)
