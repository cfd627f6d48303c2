"""From a run's logs, determine the ranks that kept the other ranks waiting until a timeout.

A rank that printed no timeout might also have waited, because the launcher ends all waiting ranks when the
first rank times out. Logs can also be truncated or missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from stallwatch_rules.diagnosis.exceptions import SURVIVED
from stallwatch_rules.diagnosis.exits import BY_SIGTERM, SIGTERM, ended_with
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.endings import BY_SIGKILL
from stallwatch_rules.failures.flight import FlightData, WatchdogPosition, reporting, watchdog_positions
from stallwatch_rules.failures.tracebacks import HEADER
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.progress.activities import Activity
from stallwatch_rules.progress.timeline import StepClock, Timeline, longest_timeline
from stallwatch_rules.records import Line, Primary
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.lazy import lazy

AWAITS_PEER: Tag = "awaits-peer"
_LOST: tuple[Tag, ...] = ("peer-gone", AWAITS_PEER)
_OF_PEERS: tuple[Tag, ...] = (*_LOST, "connecting")
_STOPPED: tuple[Tag, ...] = (SIGTERM, "interrupt")
#: Text that states the world size, in the formats of DeepSpeed, torch, environment variables, NCCL,
#: accelerate, and Lightning.
_WORLD = lazy(
    r"(?i)\b(?:world[ _-]?size|nranks|num[ _]processes)(?: is)?\W{1,5}(\d{1,6})\b"
    r"|\bMEMBER: \d{1,6}/(\d{1,6})\b"
)
#: Context managers that let the main process do some work before the other ranks do the same work
#: (transformers 5: training_args.py; accelerate 1: state.py; YOLO: utils/torch_utils.py). A rank that waits
#: when it enters the context manager is not the main process.
_MAIN_FIRST = lazy(r"main_process_first$|_goes_first$|_zero_first$")
#: Minimum time, in seconds and in steps, from the last lines of the other ranks to the last line of a rank
#: that was busy. The longer of the two times applies.
QUIET_SECONDS, QUIET_STEPS = 60.0, 2.0
LATEST = 5  #: number of most recent intervals between printed steps that define a rank's usual interval


def is_only_waiting(primary: Primary, catalogue: Catalogue) -> bool:
    """Return whether the primary cause reports only that ranks waited for another rank."""
    page = catalogue.pages.get(primary.rule)
    symptom = primary.role == "symptom" and primary.harm == "fatal"
    return symptom and page is not None and AWAITS_PEER in page.tags


def is_of_peers(primary: Primary, catalogue: Catalogue) -> bool:
    """Return whether the primary cause shows only that other processes of the run were unreachable."""
    page = catalogue.pages.get(primary.rule)
    if page is None or primary.harm != "fatal":
        return False
    return primary.role == "symptom" or any(tag in _OF_PEERS for tag in page.tags)


def did_not_report(rule: str, run: Snapshot, now: Assessment) -> list[int]:
    """Return the few ranks that did not report a failure that all other ranks reported."""
    reported = _reported(rule, run, now)
    return sorted(_absent(reported, run)) if len(reported) > 1 else []


def suspects(rule: str, run: Snapshot, now: Assessment) -> list[int]:
    """Return the few ranks that might have kept the other ranks waiting, according to the logs.

    A suspect reported no timeout, and its log does not show that it also waited. If only one rank reported
    the timeout, the only other rank of the run is a suspect.
    """
    reported = _reported(rule, run, now)
    return [
        rank for rank in sorted(_absent(reported, run)) if not _waited_too(rank, rule, reported, run, now)
    ]


def waited_for(rule: str, run: Snapshot, now: Assessment) -> list[int]:
    """Return the awaited ranks: the ranks whose stacks are outside collectives, or else the suspects.

    If only one rank reported the timeout, a suspect counts only if its log shows that it did something else.
    """
    reported = _reported(rule, run, now)
    seen = sorted(_absent(reported, run).intersection(run.context.elsewhere))
    if seen or len(reported) == 1:
        return seen or seen_elsewhere(rule, run, now)
    return suspects(rule, run, now)


def seen_elsewhere(rule: str, run: Snapshot, now: Assessment) -> list[int]:
    """Return the suspects whose logs show that they did something else while the other ranks waited."""
    reported = _reported(rule, run, now)
    return [
        rank
        for rank in suspects(rule, run, now)
        if _is_behind(rank, reported, run) or _printed_on(rank, rule, reported, run)
    ]


def busy_ranks(rule: str, run: Snapshot, now: Assessment) -> tuple[list[int], StreamReading] | None:
    """Return two values: ranks that were too busy to report a timeout, and a stream that shows their work.

    The stream belongs to the lowest of these ranks. Several ranks are returned only if all ranks that
    reported no timeout were busy with the same kind of work. Return ``None`` if other ranks might also have
    been busy with this kind of work. Lines without a rank are attributed to the main process, because a
    launcher's other ranks print nothing during such work. However, a timeout in a line without a rank is not
    from the main process if the message names a different rank, or if the stack frames show a wait for the
    main process.
    """
    reported = _reported(rule, run, now) | _named_in_messages(rule, run)
    absent = _absent(reported, run)
    waited = [hits.first.line for stream in run.streams.values() if (hits := stream.hits.get(rule))]
    lead = longest_timeline({key: stream.timelines for key, stream in run.streams.items()})
    clock = StepClock(lead)
    begun = [
        (rank or 0, stream, stream.activity_now, _before_steps(stream.activity_now, stream, lead, clock))
        for (_, rank), stream in run.streams.items()
        if stream.activity_now is not None and (rank or 0) not in reported
        if not _is_over(stream.activity_now, waited) or _is_traceback_of(rule, stream)
    ]
    busy = [each for each in begun if each[-1] is False and (not absent or each[0] in absent)]
    named = [(rank, stream) for rank, stream, _, _ in busy]
    ranks = {rank for rank, _ in named}
    kinds = {activity.kind for _, _, activity, _ in busy}
    unsure = {rank for rank, _, activity, before in begun if before is None and activity.kind in kinds}
    together = len(kinds) == 1 and ranks == absent
    known = bool(reported) or _awaits_main_process(rule, run)
    if not known or not ranks or unsure - ranks or not (together or (len(ranks) == 1 and len(absent) <= 1)):
        return None
    first = min(ranks)
    of_first = (stream for rank, stream in named if rank == first)
    return sorted(ranks), max(of_first, key=lambda stream: (stream.rank is not None, stream.index))


def _is_over(activity: Activity, waited: list[Line]) -> bool:
    """Return whether other output shows that an activity ended before the other ranks timed out."""
    after = activity.after
    if after is None:
        return False
    same = [line.number for line in waited if line.source == after.source]
    if same:
        return after.number < min(same)
    times = [line.time for line in waited if line.time is not None]
    return after.time is None or not times or after.time < min(times)


def _is_traceback_of(rule: str, stream: StreamReading) -> bool:
    """Return whether only the traceback of a rule's exception follows the activity in a stream without ranks.

    This traceback is from a rank that waited, so it does not show that the activity ended.
    """
    after = stream.activity_now.after if stream.activity_now is not None else None
    if after is None or stream.rank is not None or HEADER.search(after.text) is None:
        return False
    raised = (each for seen in stream.exceptions_now().seen.values() for each in (seen.raised, seen.last))
    below = [each for each in raised if each.line.number >= after.number]
    return bool(below) and rule in min(below, key=lambda each: each.line.number).rules


def _before_steps(
    activity: Activity, stream: StreamReading, lead: Timeline | None, clock: StepClock
) -> bool | None:
    """Return whether the run completed steps after an activity of a rank that prints no steps itself.

    `lead` is the longest timeline of the run, and `clock` finds its steps. Return ``None`` if the order
    of the activity and the steps is unknown.
    """
    if stream.last_advance is not None or lead is None or not lead.intervals:
        return False
    time = stream.when(activity.last)
    if time is not None and all(interval.time is not None for interval in lead.intervals):
        return clock.after(time) >= SURVIVED
    if lead.source != activity.last.source:
        return None
    return sum(interval.number > activity.last.number for interval in lead.intervals) >= SURVIVED


def _reported(rule: str, run: Snapshot, now: Assessment) -> set[int]:
    """Return the ranks on which this rule matched, including ranks that the watchdog's lines name."""
    finding = now.get(rule)
    if finding is None:
        return set()
    ranks = {rank for _, rank in finding.hits if rank is not None}
    ranks.update(*(run.context.alike.get(source, ()) for source, _ in finding.hits))
    return ranks | set(reporting(watchdog_positions(run.streams))) if finding.tagged("flight-data") else ranks


def _named_in_messages(rule: str, run: Snapshot) -> set[int]:
    """For lines without a rank that match a rule, return the ranks that the messages name as their own."""
    matches = (
        match
        for (_, rank), stream in run.streams.items()
        if rank is None and (hits := stream.hits.get(rule))
        for match in (hits.first, hits.last)
    )
    return {int(number) for match in matches if (number := match.captures.get("rank", "")).isdigit()}


def _awaits_main_process(rule: str, run: Snapshot) -> bool:
    """Return whether an exception that a rule matched shows that a rank waited for the main process."""
    raised = (
        seen.raised
        for stream in run.streams.values()
        if rule in stream.hits
        for seen in stream.exceptions_now().seen.values()
        if rule in seen.raised.rules
    )
    return any(
        outer.name == "__enter__" and _MAIN_FIRST.search(inner.name) is not None
        for each in raised
        for outer, inner in pairwise(each.frames)
    )


def _absent(reported: set[int], run: Snapshot) -> set[int]:
    """Return the few ranks that did not report the failure, or all ranks of the only host that has no report.

    Return an empty set if too many ranks did not report the failure, or if the run might have ranks that no
    log shows.
    """
    logged = {rank for _, rank in run.streams if rank is not None} | {*run.context.silent}
    absent = set(range(max(logged | reported, default=-1) + 1)) - reported
    few = 0 < len(absent) <= len(reported) / 2 or (len(reported) == len(absent) == 1 and absent <= logged)
    if not few and len(absent) <= len(reported):
        few = len(run.hosts.of(absent)) == 1 and run.hosts.whole(absent) and absent <= {*run.hosts.of_ranks}
    return absent if few and _world_size(run) <= len(absent | reported) else set()


def _world_size(run: Snapshot) -> int:
    """Return the number of ranks in the run, according to its lines and launchers, or 0 if it is unknown."""
    sizes = [
        int(found[1] or found[2])
        for stream in run.streams.values()
        for entry in stream.templates.entries.values()
        if entry.advances == 0 and (found := _WORLD.search(entry.first.text))
    ]
    failed = (rank + 1 for stream in run.streams.values() for rank in stream.summary.codes)
    return max(chain(sizes, failed), default=0)


def _stored_lines(stream: StreamReading) -> Iterator[Line]:
    """Yield the stored lines of a stream: the first and the last line of each template."""
    for entry in stream.templates.entries.values():
        yield entry.first
        yield entry.last


def _streams_of(rank: int, run: Snapshot) -> list[StreamReading]:
    return [stream for (_, of), stream in run.streams.items() if of == rank]


def _waited_too(rank: int, rule: str, reported: set[int], run: Snapshot, now: Assessment) -> bool:
    """Return whether a rank's log shows that it also waited, was ahead of other ranks, or was stopped."""
    steps = run.last_steps
    others = [steps[other] for other in reported if other in steps]
    ahead = rank in steps and bool(others) and steps[rank] > max(others)
    stopped = _stopped(rank, rule, reported, run, now)
    return ahead or stopped or _lost_a_peer(rank, now) or _reached(rank, reported, run)


def _lost_a_peer(rank: int, now: Assessment) -> bool:
    """Return whether a rank reported that it lost another rank, or that it waited for another rank."""
    raised = (
        exception.timed_out or exception.lost_something
        for exception in now.exceptions.unknown
        if exception.stream[1] == rank
    )
    matched = (
        any(of == rank for _, of in finding.hits) for finding in now.found if any(map(finding.tagged, _LOST))
    )
    return any(raised) or any(matched)


def _stopped(rank: int, rule: str, reported: set[int], run: Snapshot, now: Assessment) -> bool:
    """Return whether the launcher, a signal, or a user ended a rank at or after the first timeout.

    Also return True if one of the times is unknown. If only one rank reported the timeout, lines without a
    rank are attributed to the other rank.
    """
    alone = len(reported) == 1
    if alone and rank in ended_with((*BY_SIGTERM, *BY_SIGKILL), run.streams):
        return True
    began = first_timeout(rule, run)
    times = [
        run.streams[key].when(hits.first.line)
        for finding in now.found
        if any(map(finding.tagged, _STOPPED))
        for key, hits in finding.hits.items()
        if key[1] == rank or (alone and key[1] is None)
    ]
    return any(time is None or began is None or time >= began for time in times)


def _reached(rank: int, reported: set[int], run: Snapshot) -> bool:
    """Return whether a rank's watchdog shows that it reached the collective in which other ranks waited."""
    flight_data = FlightData()
    for stream in _streams_of(rank, run):
        for line in _stored_lines(stream):
            flight_data.see(line.text, rank)
    numbers = [_last_collective(flight) for (_, of), flight in flight_data.ranks.items() if of == rank]
    flights = watchdog_positions(run.streams)
    others = [_last_collective(flight) for (_, of), flight in flights.items() if of in reported]
    return bool(numbers) and max(numbers) >= max(others, default=0)


def _last_collective(flight: WatchdogPosition) -> int:
    """Return the sequence number of the last collective that a rank reached, according to its watchdog."""
    return max(flight.work or 0, flight.enqueued or 0)


def first_timeout(rule: str, run: Snapshot) -> float | None:
    """Return the time of the first rank's timeout, or ``None`` if it is unknown."""
    hits = ((stream, stream.hits[rule]) for stream in run.streams.values() if rule in stream.hits)
    times = (stream.when(found.first.line) for stream, found in hits)
    return min((time for time in times if time is not None), default=None)


def _is_behind(rank: int, reported: set[int], run: Snapshot) -> bool:
    """Return whether a rank's last step is at least one logging interval behind that of every other rank."""
    steps = run.last_steps
    others = [steps[other] for other in reported if other in steps]
    mains = [main for stream in _streams_of(rank, run) if (main := stream.timelines.main) is not None]
    gaps = [interval.span for main in mains for interval in main.intervals[1:][-LATEST:]]
    return rank in steps and bool(others and gaps) and min(others) - steps[rank] >= max(gaps)


def _printed_on(rank: int, rule: str, reported: set[int], run: Snapshot) -> bool:
    """Return whether a rank printed new messages while the ranks that later timed out printed nothing.

    A message that the rank also printed between its steps does not count, because it can come from a thread
    that prints continuously.
    """
    until = first_timeout(rule, run)
    if until is None:
        return False
    quiet = [time for other in reported for time in _times(other, until, run)]
    printed = [
        time
        for stream in _streams_of(rank, run)
        for entry in stream.templates.entries.values()
        if stream.last_advance is not None and entry.advances >= stream.timelines.advances
        if (time := stream.when(entry.last)) is not None and time < until
    ]
    pace = max(run.tracker.step_seconds(), default=0.0)
    return bool(quiet and printed) and max(printed) - max(quiet) > max(QUIET_SECONDS, QUIET_STEPS * pace)


def _times(rank: int, until: float, run: Snapshot) -> Iterator[float]:
    """Yield the times of a rank's stored messages and of its last step, if these times are before `until`."""
    for stream in _streams_of(rank, run):
        for line in chain([stream.last_advance], _stored_lines(stream)):
            if (time := stream.when(line)) is not None and time < until:
                yield time
