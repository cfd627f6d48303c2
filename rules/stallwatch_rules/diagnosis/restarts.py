"""Detect failures after which a launcher restarted its workers, and write the note about these failures.

Usually, only one rank prints steps. Therefore, the lines of another rank that failed do not show whether
training continued. A later restart of all workers shows that training continued, if steps of the run follow
the restart.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import Streams
from stallwatch_rules.diagnosis.snapshot import Assessment
from stallwatch_rules.failures.launchers import Stop
from stallwatch_rules.judgements.facts import RECOVERED_BUT_DIED
from stallwatch_rules.messages import Text, message
from stallwatch_rules.progress.timeline import CLOCK_STEP, Restart, Restarts, Timeline
from stallwatch_rules.records import Line
from stallwatch_rules.stream import StreamReading
from stallwatch_rules.text.digest import fold_ranks, shortened
from stallwatch_rules.text.display import shown
from stallwatch_rules.text.lazy import lazy

_ROLES = ("cause", "unknown", "symptom")  # an unknown exception can be the cause of a symptom
_ATTEMPT = lazy(r"(?:^|[/\\!])attempt_(\d{1,4})[/\\]")


def restarts_of(streams: Streams) -> list[Restart]:
    """Return the restarts of workers from all logs, in the order of their lines.

    torchrun (2.13, `elastic/agent/server/api.py`) logs a restart at level INFO, which is off by default, but
    logs the failed worker as an error. If the log has no line about a restart, the steps show the restart. In
    this case, the step number decreases after the error, and many steps follow. After a failure that ended
    the run, buffered output can still follow, but its step number does not decrease.
    """
    # The inner keys are numbers of remaining attempts, because all nodes report the same number.
    found: dict[tuple[str, int], dict[str, Restart]] = {}
    stops = [stop for stream in streams.values() for stop in stream.summary.stops]
    numbers: dict[str, list[int]] = {}
    for stop in stops:
        numbers.setdefault(stop.line.source, []).append(stop.line.number)
    for stop in sorted(stops, key=lambda stop: (stop.line.source, stop.line.number)):
        beside = [stream for (source, _), stream in streams.items() if source == stop.line.source]
        mains = [main for stream in beside if (main := stream.timelines.main) is not None]
        restart = _restart(stop, numbers[stop.line.source], mains)
        if restart is None or restart.followed < (1 if stop.left else RECOVERED_BUT_DIED):
            continue
        alike = found.setdefault((stop.line.source, restart.followed), {})
        before = alike.pop(stop.left, None) or alike.pop("", None)
        ranks = {*restart.local_ranks, *(before.local_ranks if before is not None else ())}
        alike[stop.left] = replace(restart, local_ranks=tuple(sorted(ranks)))
    return [restart for alike in found.values() for restart in alike.values()] + _attempts(streams)


def _attempts(streams: Streams) -> list[Restart]:
    """For each log whose path shows that it is from an earlier attempt, return a restart at its end.

    torchrun writes the logs of each attempt to a folder with the attempt's number (torch 2.13,
    `distributed/elastic/multiprocessing/api.py`): ``RUN_ID/attempt_0/3/stderr.log``.
    """
    attempts: dict[int, list[StreamReading]] = {}
    ended: dict[str, float] = {}  # source → the last time in its lines
    for (source, _), stream in streams.items():
        found = _ATTEMPT.search(source)
        if found is not None:
            attempts.setdefault(int(found[1]), []).append(stream)
            ended[source] = max(ended.get(source, -math.inf), stream.last_time or -math.inf)
    restarts: list[Restart] = []
    followed = 0  # number of steps in later attempts
    later = math.inf  # the earliest time in a later attempt
    newest = max(attempts, default=0)
    for attempt in sorted(attempts, reverse=True):
        mains = [main for stream in attempts[attempt] if (main := stream.timelines.main) is not None]
        lead = max(mains, key=lambda timeline: timeline.advances, default=None)
        if attempt != newest:
            step = lead.last_step if lead is not None else None
            for stream in attempts[attempt]:
                end = Line("", stream.source, sys.maxsize, stream.rank, stream.last_time)
                # The folder can contain several starts, each of which counts its attempts from 0.
                if ended[stream.source] <= later + CLOCK_STEP:
                    restarts.append(Restart(end, (), step, followed, attempt))
        followed += lead.advances if lead is not None else 0
        times = (stream.first_time for stream in attempts[attempt] if stream.first_time is not None)
        later = min(later, *times, math.inf)
    return restarts


def _restart(stop: Stop, stops: Sequence[int], timelines: Sequence[Timeline]) -> Restart | None:
    if not timelines:
        return None
    lead = max(timelines, key=lambda timeline: timeline.advances)
    if not stop.left and not _went_back(stop, stops, lead):
        return None
    earlier = [interval.step for interval in lead.intervals if interval.number < stop.line.number]
    followed = sum(interval.span for interval in lead.intervals if interval.number >= stop.line.number)
    return Restart(stop.line, tuple(stop.ranks), earlier[-1] if earlier else None, followed)


def _went_back(stop: Stop, stops: Sequence[int], lead: Timeline) -> bool:
    """Return whether the step number decreased after a failure, which shows that the workers restarted.

    If torchrun itself ended with ``ChildFailedError`` later, it must also have reported another failure
    between the decrease and its end.
    """
    number = stop.line.number
    before = sum(interval.span for interval in lead.intervals if interval.number < number)
    backs = [back for back in lead.backs if back > number]
    if 4 * (len(lead.backs) - len(backs)) > before:
        return False  # several ranks without prefixes share the log, and a lower step is from another rank
    if stop.over is None or not backs:
        return bool(backs)
    return any(backs[0] < later < stop.over for later in stops)


def restarts_note(restarts: Sequence[Restart], now: Assessment) -> Text:
    """Return a note with the number of restarts and with the step, ranks, and reason of the last restart."""
    if not restarts:
        return ""
    logged = [restart for restart in restarts if restart.attempt is None]
    times = len(logged) or len({restart.attempt for restart in restarts})
    # The restarts after earlier attempts are in descending order of the attempts.
    last = logged[-1] if logged else restarts[0]
    places = [f"step {last.step}"] if last.step is not None else []
    places += [f"local_rank {fold_ranks(last.local_ranks)}"] if last.local_ranks else []
    places += [f"{last.line.source}:{last.line.number}" if logged else f"attempt_{last.attempt}"]
    why = _why(restarts, last, now)
    key = "diagnosis.restarted-once" if times == 1 else "diagnosis.restarted"
    text = message(key, times=times, places=", ".join(places))
    return text + (message("diagnosis.restarted-why", why=why) if why else "")


def _same(restart: Restart | None, last: Restart) -> bool:
    """Return whether `restart` is the last restart, which several logs can show."""
    if restart is None or last.attempt is None:
        return restart is last
    return restart.attempt == last.attempt


def _why(restarts: Sequence[Restart], last: Restart, now: Assessment) -> str:
    """Return the line that shows why the last restart occurred, or an empty string. Causes have priority."""
    found: list[tuple[str, Line]] = []
    for finding in now.found:
        if finding.role in ("cause", "symptom"):
            matches = [match for hits in finding.hits.values() for match in (hits.first, hits.last)]
            found += [(finding.role, match.line) for match in matches]
    found += [("unknown", finding.seen.last.line) for finding in now.exceptions.unknown]
    by_source = Restarts(restarts)
    of_last = [(role, line) for role, line in found if _same(by_source.next(line), last)]
    if not of_last:
        return ""
    _, line = min(of_last, key=lambda found: (_ROLES.index(found[0]), -found[1].number))
    text = shortened(shown(line.text))
    return f"{text} (rank {line.rank})" if line.rank is not None else text
