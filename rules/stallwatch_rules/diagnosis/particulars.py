"""Add details from the log to a primary cause: ranks, limits, senders of signals, and stack frames."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from stallwatch_rules.diagnosis.awaited import (
    QUIET_SECONDS,
    busy_ranks,
    first_timeout,
    is_only_waiting,
    waited_for,
)
from stallwatch_rules.diagnosis.exits import SIGTERM, ended_from_outside, ended_silently, rank_of_end
from stallwatch_rules.diagnosis.findings import MAX_EVIDENCE, RuleFinding, Streams
from stallwatch_rules.diagnosis.hosts import RunHosts
from stallwatch_rules.diagnosis.inferred import PLACE
from stallwatch_rules.diagnosis.outside_end import last_unknown_line
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.uneven import Uneven
from stallwatch_rules.failures.environment import agreed
from stallwatch_rules.failures.flight import (
    MismatchedRanks,
    mismatched,
    mismatched_ranks,
    watchdog_positions,
)
from stallwatch_rules.failures.frameworks import framework_of
from stallwatch_rules.failures.raised import ExceptionChain, own_frame, shown_frames
from stallwatch_rules.failures.tracebacks import MORE_LINES
from stallwatch_rules.judgements.concerns import SEEN
from stallwatch_rules.judgements.conclusions import MISMATCH
from stallwatch_rules.messages import Message, Text, bilingual, contains, has, message
from stallwatch_rules.pages.fixes import Evidence, fixes_for, why_of, without_search
from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.records import Line, Primary
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.digest import fold_names, fold_ranks, ranks_on, some_ranks, span_of_steps
from stallwatch_rules.text.display import iso, shown
from stallwatch_rules.text.lazy import lazy

_HANGUP = lazy(r"SIGHUP|sig(?:nal|val) ?: ?1\b")
MAX_READ = 16  #: maximum number of streams that are searched for the framework
FAULTHANDLER = "-X faulthandler"
MAX_QUOTED = 2  #: maximum number of quoted lines in the evidence
MAX_BEHIND = 8  #: maximum number of collectives that a late rank can be behind
UNKNOWN_RANK = "4294967295"  #: number that HCCL prints instead of a remote rank that it does not know
#: Lines from vLLM 0.11.0 (``v1/engine/core.py`` and ``entrypoints/openai/api_server.py``).
_VLLM = lazy(r"\bEngineCore\b|\bvLLM API server version\b|\bInitializing a V1 LLM engine\b")


def primary_of(
    finding: RuleFinding, confidence: float, run: Snapshot, now: Assessment, held_up: Uneven | None = None
) -> Primary:
    """Return the primary cause with the text of its page and with details from the log.

    `held_up` contains the ranks that hold up a stalled run, if the steps of the ranks identify them.
    """
    primary = _primary(finding, confidence, run, now)
    if held_up is not None:
        return named(primary, sorted(held_up.behind), held_up.note("held-up"), run.hosts)
    if run.context.crash is not None and primary.rank is None:
        primary.rank = run.context.crash.rank
    if finding.role == "symptom" and finding.harm == "fatal":
        silent = ended_silently(run, now)
        primary.fixes[:0] = [silent] if silent else []
    primary = _pointed_to_missing(_with_calls(primary, finding, run.streams), run, now)
    if finding.tagged("flight-data") and is_only_waiting(primary, run.catalogue):
        odd = mismatched_ranks(watchdog_positions(run.streams))
        # Without both groups of ranks, it is unknown which ranks differ from the other ranks.
        if odd is not None and odd.ranks and odd.others():
            return _with_odd_ranks(primary, odd, run, [primary.rule])
        return primary
    if finding.tagged("evicted") and any(contains(line, "OOMKill") for line in primary.evidence):
        return _over_its_limit(primary, finding, run.streams)
    if primary.rule == MISMATCH and not finding.hits:
        odd = mismatched(watchdog_positions(run.streams))
        if odd is not None and len(odd.ranks) <= sum(map(len, odd.works.values())) / 8:
            return _with_odd_ranks(primary, odd, run, run.catalogue.tagged("flight-data"))
        return primary
    first = finding.shown_match
    if finding.tagged("nan-loss") and first and first.step is not None and SEEN not in first.captures:
        key = "nan-since" if finding.harm == "fatal" else "nan-at"
        since = message(f"diagnosis.{key}", step=first.step, fix=primary.fixes[0])
        return replace(primary, fixes=[since, *primary.fixes[1:]])
    if finding.tagged(SIGTERM) and not now.exceptions.unknown:
        return _from_outside(primary, finding, now)
    return _at_its_frame(primary, run.streams) if finding.tagged("sigsegv") else primary


def _primary(finding: RuleFinding, confidence: float, run: Snapshot, now: Assessment) -> Primary:
    environment, last_step = environment_of(run), run.tracker.last_step
    first = finding.shown_match
    line = first.line if first is not None else finding.where
    captures = {name: shown(value) for name, value in (first.captures if first else {}).items()}
    fixes = fixes_for(finding.page, environment, _evidence(finding, line, captures, run))
    failed = culprits(run.streams)
    line = line if line is not None else Line("", "", 0)
    rank = line.rank
    if rank is None:
        rank = rank_of_end(finding, run.streams)
    if len(failed) == 1 and (finding.role == "wrapper" or (finding.role == "cause" and rank is None)):
        rank = failed[0]  # all ranks share a file without rank prefixes; the launcher names the failed rank
    quoted = _quoted_lines(finding, line, run)
    served = line.rank is None and _is_vllm_server(line.source, run.streams)
    if served:
        rank = None
        fixes.insert(0, message("diagnosis.in-vllm-server"))
    if finding.role == "wrapper" and not now.exceptions.fatal:
        ranks = some_ranks(failed) if failed else ""
        unknown = message("diagnosis.other-logs-unknown")
        fixes.insert(0, message("diagnosis.other-logs", ranks=ranks) if ranks else unknown)
    return Primary(
        rule=finding.rule,
        title=title_of(finding.page),
        role=finding.role,
        harm=finding.harm,
        confidence=confidence,
        rank=rank,
        file=line.source,
        line=line.number,
        time=iso(line.time, zoned=line.zoned),
        step=None if served else finding.step_of(first, last_step) if first is not None else finding.step,
        evidence=[*(*finding.evidence(), *quoted)[:MAX_EVIDENCE]],
        captures=captures,
        why=why_of(finding.page),
        fixes=fixes,
        inferred="place" if PLACE in finding.facts else "",
        host=line.host,
    )


def _evidence(
    finding: RuleFinding, line: Line | None, captures: Mapping[str, str], run: Snapshot
) -> Evidence:
    """If any of the page's fixes has a condition, return the facts that decide which of the fixes apply."""
    page = finding.page
    if not any(fix.startswith("{") for fix in page.sections.fixes):
        return Evidence()
    streams = [stream for (source, _), stream in run.streams.items() if line is None or source == line.source]
    streams = (streams or [*run.streams.values()])[:MAX_READ]
    failed: list[str] = []
    others: list[str] = []
    messages: list[str] = []
    for stream in streams:
        for seen in stream.exceptions_now().seen.values():
            paths = failed if page.id in seen.raised.rules else others
            paths += (frame.path for frame in seen.raised.frames)
            messages.append(seen.raised.message)
    lines = "\n".join((*_stored_lines(streams), *messages))
    text = "\n".join((lines, *failed, *others))
    framework, trained = framework_of(lines, failed, others), finding.had_trained(run.tracker)
    return Evidence(framework, captures, run.tracker.shows_finish, text, trained)


def _quoted_lines(finding: RuleFinding, line: Line, run: Snapshot) -> list[str]:
    """Return the stored lines from the same source that the page quotes, because they contain the reason."""
    if not finding.page.quotes:
        return []
    streams = [stream for (source, _), stream in run.streams.items() if source == line.source][:MAX_READ]
    quotes = [cached_re2(pattern, encoded=False) for pattern in finding.page.quotes]
    found = (text for text in _stored_lines(streams) if any(quote.search(text) for quote in quotes))
    known = set(finding.evidence())
    return [text for text in dict.fromkeys(map(shown, found)) if text not in known][:MAX_QUOTED]


def _stored_lines(streams: Iterable[StreamReading]) -> Iterator[str]:
    """Yield the stored lines: one for each template, the matched lines, and the line of the last step."""
    for stream in streams:
        yield from (entry.first.text for entry in stream.templates.entries.values())
        yield from (text for hits in stream.hits.values() for text in hits.exemplars)
        if stream.last_advance is not None:
            yield stream.last_advance.text


def environment_of(run: Snapshot) -> dict[str, str]:
    """Return the library versions that the run's streams contain."""
    return agreed(stream.versions for stream in run.streams.values())


def culprits(streams: Streams) -> list[int]:
    """Return the ranks that failed, according to launchers' reports, except ranks that a launcher ended."""
    return sorted({rank for stream in streams.values() for rank in stream.summary.culprits})


def title_of(page: RulePage) -> Message:
    """Return the page's title in both languages."""
    return bilingual(page.title, page.title_zh)


def _is_vllm_server(source: str, streams: Streams) -> bool:
    """Return whether a source is the log of a vLLM server, whose failures belong to no rank and no step."""
    of_source = [stream for (name, _), stream in streams.items() if name == source]
    if len(of_source) == len(streams) or any(stream.last_advance is not None for stream in of_source):
        return False
    texts = (entry.first.text for stream in of_source for entry in stream.templates.entries.values())
    hits = (text for stream in of_source for hits in stream.hits.values() for text in hits.exemplars)
    return any(_VLLM.search(text) for group in (texts, hits) for text in group)


def _with_odd_ranks(primary: Primary, odd: MismatchedRanks, run: Snapshot, rules: Collection[str]) -> Primary:
    """In the primary cause, name the ranks that waited in a different collective than most ranks."""
    advice = message("diagnosis.flight-apart", own=odd.own(), others=odd.others())
    return _with_own_line(named(primary, odd.ranks, advice, run.hosts), odd.ranks, run.streams, rules)


def _with_own_line(primary: Primary, ranks: list[int], streams: Streams, rules: Collection[str]) -> Primary:
    """Point the primary cause to a line that one of these ranks printed and one of these rules matched."""
    lines = sorted(
        (hits.first.line.rank, hits.first.line.source, hits.first.line.number, hits.first.line.text)
        for (_, rank), stream in streams.items()
        if rank in ranks
        for rule in rules
        if (hits := stream.hits.get(rule)) and hits.first.line.rank is not None
    )
    if not lines:
        return replace(primary, rank=ranks[0])
    rank, source, number, text = lines[0]
    evidence = list(dict.fromkeys([shown(text), *primary.evidence]))[:4]
    return replace(primary, rank=rank, file=source, line=number, evidence=evidence)


def _over_its_limit(primary: Primary, finding: RuleFinding, streams: Streams) -> Primary:
    """Describe the primary cause as the end of a container that exceeded its memory limit.

    If `kubectl describe` shows exactly one limit, add the limit to the primary cause.
    """
    sources = {source for source, _ in finding.hits}
    limits = {
        limit: line.text
        for (source, _), stream in streams.items()
        if source in sources
        for limit, line in stream.summary.limits.items()
    }
    advice = message("diagnosis.oom-killed-first")
    if len(limits) != 1:  # it is unknown which of several limits applied
        return replace(primary, title=message("diagnosis.oom-killed"), fixes=[advice, *primary.fixes])
    ((limit, text),) = limits.items()
    return replace(
        primary,
        title=message("diagnosis.oom-killed-limit", limit=limit),
        fixes=[advice, *primary.fixes],
        evidence=[*primary.evidence[:3], shown(text)],
        captures={**primary.captures, "limit": limit},
    )


def _from_outside(primary: Primary, finding: RuleFinding, now: Assessment) -> Primary:
    """If only a SIGTERM from outside ended the run, describe the primary cause as an end from outside."""
    failed = any(other is not finding and other.role != "wrapper" for other in now.fatal)
    texts = [text for hits in finding.hits.values() for text in hits.exemplars]
    if failed or not ended_from_outside(finding, now.found) or any(map(_HANGUP.search, texts)):
        return primary
    title, advice = message("diagnosis.ended-from-outside"), message("diagnosis.ended-from-outside-ask")
    return replace(primary, title=title, fixes=[advice, *primary.fixes])


def _at_its_frame(primary: Primary, streams: Streams) -> Primary:
    """Add the call in which compiled code crashed, as faulthandler printed it, to the primary cause."""
    dumps = [
        (rank is None, rank or 0, source, seen.raised)
        for (source, rank), stream in streams.items()
        for seen in stream.exceptions_now().seen.values()
        if seen.raised.native and seen.raised.frames and primary.rule in seen.raised.rules
    ]
    if not dumps:
        return primary
    *_, raised = min(dumps, key=lambda dump: dump[:3])
    frames = [frame for frame in reversed(raised.frames) if frame.line]
    if not frames:
        return primary
    place = next((frame for frame in frames if not frame.library), frames[0])
    advice = message("diagnosis.crashed-at", frame=shown(str(place)), inner=shown(str(frames[0])))
    fixes = [fix for fix in primary.fixes if not contains(fix, FAULTHANDLER)]
    evidence = [*primary.evidence[:1], shown(f"  {place}"), *primary.evidence[1:3]]
    return replace(primary, fixes=[advice, *fixes], evidence=evidence)


def _with_calls(primary: Primary, finding: RuleFinding, streams: Streams) -> Primary:
    """Add the stack frames of the exception that is the primary cause.

    The user's own innermost frame is also added to the evidence. Frames are added only if the primary cause
    points to a line of the exception, because another exception of the same rule might have been raised
    elsewhere. Crashes of compiled code are skipped, because the pages on those crashes show the frames.
    """
    match = finding.shown_match
    if match is None:
        return primary
    candidates = [
        raised
        for key in finding.hits
        for seen in streams[key].exceptions_now().seen.values()
        for raised in (seen.raised, seen.last)
        if raised.kind == "failure" and not raised.native and raised.frames
        if primary.rule in raised.rules and _is_message_end(raised, match.line)
    ]
    if not candidates:
        return primary
    nearest = max(candidates, key=lambda raised: raised.line.number)
    frames = [shown(frame) for frame in shown_frames(nearest.frames)]
    innermost = own_frame(frames)
    evidence = [*primary.evidence[:1], f"  {innermost}", *primary.evidence[1:]][:MAX_EVIDENCE]
    return replace(primary, frames=frames, evidence=evidence if innermost else primary.evidence)


def _is_message_end(raised: ExceptionChain, line: Line) -> bool:
    """Return whether a line is the final line of the exception or a message line directly after it."""
    if (raised.line.source, raised.line.rank) != (line.source, line.rank):
        return False
    return 0 <= line.number - raised.line.number <= MORE_LINES


def named(primary: Primary, ranks: list[int], advice: Text, hosts: RunHosts) -> Primary:
    """Return the primary cause with these ranks in its title and with `advice` as its first fix."""
    known = {rank: host for rank in ranks if (host := hosts.host(rank))}
    if len(known) < len(ranks):
        title = message("diagnosis.of-ranks", title=primary.title, ranks=fold_ranks(ranks))
    else:
        title = message("diagnosis.of-ranks-on", title=primary.title, ranks=ranks_on(ranks, known))
    return replace(primary, title=title, fixes=[advice, *without_search(primary.fixes)])


def is_named(primary: Primary) -> bool:
    """Return whether the title of the primary cause names ranks."""
    return has(primary.title, "diagnosis.of-ranks", "diagnosis.of-ranks-on")


def _of_whole_hosts(absent: list[int], run: Snapshot) -> Message | None:
    """If whole hosts are absent, or if no absent rank has a log, return advice that names the hosts."""
    hosts = run.hosts.of(absent)
    logged = any(rank in run.hosts.of_ranks for rank in absent)
    if not hosts or (logged and not run.hosts.whole(absent)):
        return None
    key = "host-did-not-come" if logged else "host-left-no-log"
    return message(f"diagnosis.{key}", count=len(hosts), hosts=fold_names(hosts), ranks=fold_ranks(absent))


def _with_remote_rank(primary: Primary) -> Primary:
    """If the message from HCCL names a known remote rank, add the rank to the fixes of the primary cause."""
    number = primary.captures.get("remote_rank", "")
    if not number.isdigit() or number == UNKNOWN_RANK:
        return primary
    return replace(primary, fixes=[message("diagnosis.waited-for-remote", number=number), *primary.fixes])


def _with_late_ranks(primary: Primary, run: Snapshot) -> Primary:
    """If only a few ranks waited in an earlier collective, add these ranks to the primary cause."""
    works: dict[tuple[str, str], dict[int, list[int]]] = {}
    for (group, rank), flight in watchdog_positions(run.streams).items():
        if flight.work is not None:
            works.setdefault((group, flight.operation), {}).setdefault(flight.work, []).append(rank)
    waited = max(works.values(), key=lambda numbers: sum(map(len, numbers.values())), default={})
    if len(waited) != 2:
        return primary
    (late, ranks), (number, others) = sorted(waited.items())
    if number - late > MAX_BEHIND or len(ranks) > len(others) / 4:
        return primary
    advice = message("diagnosis.waited-earlier", ranks=some_ranks(ranks), own=late, others=number)
    named_ranks = named(primary, sorted(ranks), advice, run.hosts)
    return _with_own_line(named_ranks, sorted(ranks), run.streams, [primary.rule])


def _pointed_to_missing(primary: Primary, run: Snapshot, now: Assessment) -> Primary:
    """If it is known for which rank the others waited in a collective, point the primary cause to that rank.

    The ranks that print a timeout reached the collective. To find the reason, a user must inspect the last
    step and the last lines of the missing rank.
    """
    if not is_only_waiting(primary, run.catalogue):
        return primary
    busy = busy_ranks(primary.rule, run, now)
    if busy is not None:
        return _still_busy(primary, *busy, run)
    absent = waited_for(primary.rule, run, now)
    if not absent:
        return _with_late_ranks(_with_remote_rank(primary), run)
    steps = run.tracker.steps
    others = max((step for rank, step in steps.items() if rank not in absent), default=None)
    last_steps = [steps[rank] for rank in absent if rank in steps]
    last_step = min(last_steps, default=None)
    ranks = some_ranks(absent)
    if last_step is None or others in (None, last_step):
        advice = message("diagnosis.did-not-come", ranks=ranks)
    else:
        step = span_of_steps(last_steps)
        advice = message("diagnosis.did-not-come-step", ranks=ranks, step=step, others=others)
    if whole := _of_whole_hosts(absent, run):
        advice = whole
    primary = named(primary, absent, advice, run.hosts)
    if len(absent) > 1 and not run.hosts:
        return primary
    shown_rank = _last_to_print(absent, run)
    logged = [stream for (_, rank), stream in run.streams.items() if rank == shown_rank and stream.index]
    lines = [line for stream in logged if (line := _last_line(stream)) is not None]
    if len(absent) > 1 and not logged:  # a rank without a log has no line to point to
        return replace(primary, rank=shown_rank, file="", line=0, time=None, step=None)
    return _pointed_to(primary, shown_rank, lines[0], last_step) if len(lines) == 1 else primary


def _last_line(stream: StreamReading) -> Line | None:
    """Return the last line of a stream that matches no rule, or the line of its last step."""
    return last_unknown_line(stream) or stream.last_advance


def _last_to_print(ranks: list[int], run: Snapshot) -> int:
    """Return the lowest of the ranks that printed until the end, because often only one rank prints steps."""
    times = [
        (rank, time)
        for (_, rank), stream in run.streams.items()
        if rank in ranks and (time := stream.when(_last_line(stream))) is not None
    ]
    last = max((time for _, time in times), default=0.0)
    late = (rank for rank, time in times if rank is not None and last - time <= QUIET_SECONDS)
    return min(late, default=ranks[0])


def _pointed_to(primary: Primary, rank: int, line: Line, step: int | None) -> Primary:
    return replace(
        primary,
        rank=rank,
        file=line.source,
        line=line.number,
        time=iso(line.time, zoned=line.zoned),
        step=step,
        evidence=[shown(line.text), *primary.evidence[:3]],
    )


def _still_busy(primary: Primary, ranks: list[int], stream: StreamReading, run: Snapshot) -> Primary:
    """Add the activity of the missing ranks and the duration of the activity to the primary cause."""
    rank, activity = ranks[0], stream.activity_now
    assert activity is not None
    until, begun = first_timeout(primary.rule, run), stream.when(activity.first)
    lasted = until - begun if until is not None and begun is not None and until > begun else activity.seconds
    waited = primary.captures.get("timeout_ms", "")
    operation = primary.captures.get("optype", "")
    what: dict[str, str | Message] = {
        "rank": fold_ranks(ranks),
        "activity": message(f"activity.{activity.kind}", what=activity.what),
        "operation": operation or message("activity.collective"),
    }
    key = "diagnosis.still-busy" if len(ranks) == 1 else "diagnosis.ranks-still-busy"
    if lasted is not None and lasted >= 1:
        title = message(f"{key}-for", lasted=lasted, **what)
    elif waited.isdigit():
        title = message(f"{key}-after", waited=int(waited) / 1000, **what)
    else:
        title = message(key, **what)
    captures = {**primary.captures, "activity": activity.kind}
    if lasted is not None:
        captures["activity_seconds"] = f"{lasted:.0f}"
    advice = "retrying-download" if activity.kind == "retrying-download" else "advice"
    fixes = [message(f"diagnosis.still-busy-{advice}"), *without_search(primary.fixes)]
    primary = replace(primary, title=title, fixes=fixes, captures=captures)
    return _pointed_to(primary, rank, activity.last, run.tracker.steps.get(rank))
