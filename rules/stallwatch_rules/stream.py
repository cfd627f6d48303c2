"""Keep the bounded state of one source and rank while its lines are read in order."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping
from operator import itemgetter
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from stallwatch_rules.end_lines import StatedEnd
from stallwatch_rules.failures.crashes import BLOCK_LINES, CrashReader
from stallwatch_rules.failures.environment import belongs_to_a_run, versions_in
from stallwatch_rules.failures.failed_starts import Below, next_state
from stallwatch_rules.failures.flight import FlightData
from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.failures.raised import ExceptionChain, ExceptionTable, LinePosition
from stallwatch_rules.failures.templates import MAX_TEXT, TemplateTable
from stallwatch_rules.failures.tracebacks import TracebackReader
from stallwatch_rules.hints import LAUNCHER, Hints, may_hold
from stallwatch_rules.lines.stamps import clock_set_back, time_of_line
from stallwatch_rules.progress.activities import Activity
from stallwatch_rules.progress.counter import Counter
from stallwatch_rules.progress.curve import METRICS, Curves
from stallwatch_rules.progress.timeline import StreamTimelines
from stallwatch_rules.records import Line, Match, Sample
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import masked

MAX_EXEMPLARS = 3
MAX_TEMPLATES = 8  #: maximum number of exemplars, including exemplars of other templates
MAX_ACTIVITY = 4096
MAX_PROCESSES = 256  #: maximum number of processes whose logged exceptions are observed
AGED_STEPS, AGED_LINES = 3, 100  #: numbers of steps and lines after which a line's time no longer applies
PAUSE_SECONDS = 10.0  #: minimum time between two lines that is recorded as a pause
MAX_PAUSES = 1000
ACTIVITY_SECONDS = 15.0  #: lines within this number of seconds count as one sign of life
#: The number of skipped steps that the DeepSpeed engine prints (deepspeed 0.19.8, runtime/engine.py,
#: ``_report_progress``). Other programs print numbers of skipped samples.
_ENGINES_COUNT = lazy(r"\bstep=\d{1,15}, skipped=\d{1,15}, lr=\[")
_LOSS = lazy(r"loss\w{0,12}['\"]? ?[:=]? ?[-\d.]")
# Unit of the differences between time zones, and maximum difference between equal times, in seconds.
_ZONE_SECONDS, _SAME_SECONDS = 900.0, 0.001
VERSION_LINES = 20_000  #: number of first lines searched for versions, which programs print at startup


class RuleHits(msgspec.Struct):
    """The matches of one rule in the lines of one rank in one source."""

    first: Match
    first_index: int  #: index of the first match's line in its stream
    last: Match
    mark: int  #: number of steps in the stream before the last match
    own_step: int | None = None  #: step in the lines of this stream at the first match
    last_own_step: int | None = None  #: step in the lines of this stream at the last match
    since: Match | None = None  #: the first match after the last finite loss that preceded a match
    since_own_step: int | None = None  #: step in the lines of this stream at the match ``since``
    last_index: int = 0  #: index of the last match's line in its stream
    last_plain: int = 0  #: number of lines outside tracebacks before the last match
    answers: int = 0  #: number of requests that the stream's server had answered at the last match
    count: int = 0
    at_steps: int = 0  #: number of steps in the lines of this stream at which the rule matched
    teardown: int = 0  #: number of matches in the output of a process during its teardown
    handled: int = 0  #: number of matches in exceptions that the program reports as handled
    exemplars: list[str] = []
    lowest: dict[str, float] = {}  #: capture → the lowest number in it

    def add(self, match: Match, mark: int, own_step: int | None, more: int = 0) -> None:
        """Count one match and `more` matches in similar lines that were skipped."""
        self.count += 1 + more
        if own_step is not None and (not self.at_steps or own_step != self.last_own_step):
            self.at_steps += 1
        self.last, self.mark, self.last_own_step = match, mark, own_step
        self._keep(match.line.text)
        for name, value in match.captures.items():
            try:
                number = float(value)
            except ValueError:
                continue
            self.lowest[name] = min(number, self.lowest.get(name, number))

    def _keep(self, text: str) -> None:
        """If a line is one of the first matches or the first match with its template, keep its text."""
        if len(self.exemplars) >= MAX_TEMPLATES or text in self.exemplars:
            return
        if len(self.exemplars) >= MAX_EXEMPLARS:
            template = masked(text[:MAX_TEXT])
            if any(masked(known[:MAX_TEXT]) == template for known in self.exemplars):
                return
        self.exemplars.append(text)


class SkippedLines(msgspec.Struct):
    """The number of skipped lines of a source for each stream."""

    lines: float = 0.0
    losses: float = 0.0  #: number of skipped metrics lines that have a loss but no step

    def add(self, lines: int, losses: int, streams: int) -> None:
        """Record skipped lines of a source.

        The lines are assumed to be spread evenly over the streams of the source. `streams` is the number of
        these streams.
        """
        self.lines += lines / max(1, streams)
        self.losses += losses / max(1, streams)


def _same_clock(stamp: float | None, time: float) -> bool:
    """Return whether a line's time equals the time in its timestamp, apart from the time zone."""
    apart = abs(time - stamp) % _ZONE_SECONDS if stamp is not None else _ZONE_SECONDS / 2
    return min(apart, _ZONE_SECONDS - apart) < _SAME_SECONDS


class StreamReading:
    """The state after reading the lines of one rank in one source."""

    def __init__(
        self,
        source: str,
        rank: int | None,
        failures: frozenset[str],
        gaps: SkippedLines | None = None,
        timeouts: frozenset[str] = frozenset(),
        starts: frozenset[str] = frozenset(),
    ) -> None:
        self.source = source
        self.starts = starts  #: rules that match a failed start
        self.below_start: Below = ""  #: kind of output after the last match of a rule in ``starts``
        self.timeouts = timeouts  #: rules whose lines contain flight data
        self.rank = rank
        self.index = 0  #: number of lines read
        self.plain = 0  #: number of lines read outside tracebacks
        self._gaps = gaps if gaps is not None else SkippedLines()
        self._left_out, self._losses = self._gaps.lines, self._gaps.losses
        self.timelines = StreamTimelines()
        self.answers = 0  #: number of lines that show that a server answered a request
        self.curves = Curves()
        self._logged: Mapping[str, int] = {}  # number of steps of each counter when a loss was last printed
        self._logged_step: int | None = None  # the step at which a loss was last printed
        self._lossy = False  # True if a loss has been printed since the last step
        self.flight = FlightData()
        self.tracebacks = TracebackReader(failures)
        self.crashes = CrashReader()
        self.in_exception = False  #: True if the next line can belong to a traceback or crash
        self.exceptions = ExceptionTable()
        #: Counter → steps in the bar after an exception, if only lines of a launcher follow the bar.
        self.redraws: dict[str, int] = {}
        self.templates = TemplateTable()
        self._worked = 0  # number of lines that reported work after the first exception that a logger printed
        # Process whose logger printed an exception → `_worked` at the last line about work from this process.
        self._worked_by: dict[str, int] = {}
        self.hits: dict[str, RuleHits] = {}
        self.contexts: set[str] = set()  #: rules with a match of ``requires`` in this stream
        self.versions: dict[str, str] = {}
        self.summary = LauncherSummary()
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.last_zoned = False  #: True if the zone of the last time is known
        #: Seconds by which the end of daylight saving time set the clock back since the last step.
        self.turned_back = 0.0
        # Number and time of the first line after each pause.
        self._pauses: deque[tuple[int, float]] = deque(maxlen=MAX_PAUSES)
        self._undated = self._undated_steps = 0  # numbers of lines and samples since a line with a time
        self.last_advance: Line | None = None
        self.after_time: float | None = None  #: the first time in a line after the last step
        self.activity: dict[int, int] = {}  #: lines since the last step, by time in units of ACTIVITY_SECONDS
        self.activity_now: Activity | None = None  #: the latest activity since the last step
        self.timed = False  #: True if the times of lines come from outside their text
        self.of_a_run = False  #: True if a line without a step was part of the training
        self.stated_end: StatedEnd | None = None  #: how the command ended, as an agent stated it in the log
        self.sampled = False  #: True if any line contained training metrics
        self._finite_at = -1  # index of the last line with a finite loss
        self.lowest_scale: float | None = None  #: lowest loss scale at which a step overflowed
        #: The trainer's count of skipped steps, and the step at which it was printed.
        self.skipped: tuple[float, int] | None = None
        #: The first count of skipped steps that DeepSpeed printed, and the step at which it was printed. A
        #: count at a lower step than the previous count replaces the first count.
        self.skipped_first: tuple[float, int] | None = None
        #: The last count of skipped steps that DeepSpeed printed, and the step at which it was printed.
        self.skipped_last: tuple[float, int] | None = None

    def clock(self, line: Line) -> None:
        """Record the time of a line, and whether the log's collector, not the program, added the time."""
        if line.time is not None and line.time != self.last_time:
            self.timed = self.timed or not _same_clock(time_of_line(line.text, line.time), line.time)
            if self.last_time is not None and not line.zoned and line.time < self.last_time:
                self.turned_back += clock_set_back(self.last_time, line.time)
            if self.last_time is not None and line.time - self.last_time > PAUSE_SECONDS:
                self._pauses.append((line.number, line.time))
            self.last_time, self._undated, self._undated_steps = line.time, 0, 0
            self.last_zoned = line.zoned
            if self.first_time is None:
                self.first_time = line.time

    def pause_after(self, line: Line) -> float | None:
        """Return the time at which the first pause after a line ended. The line was printed earlier."""
        at = bisect_right(self._pauses, line.number, key=itemgetter(0))
        return self._pauses[at][1] if at < len(self._pauses) else None

    def when(self, line: Line | None) -> float | None:
        """Return the line's time, or ``None`` if the time was carried over from an earlier line."""
        if line is None or line.time is None:
            return None
        return line.time if self.timed or time_of_line(line.text, line.time) is not None else None

    def dated(self, line: Line) -> Line:
        """If a line's time was carried over from a much earlier line, return the line without its time.

        The distance is measured in lines and steps of the stream.
        """
        if line.time is None or self.timed:
            return line
        if self._undated < AGED_LINES and self._undated_steps < AGED_STEPS:
            return line
        if time_of_line(line.text, line.time) is not None:
            return line
        return msgspec.structs.replace(line, time=None)

    def read(
        self,
        line: Line,
        sample: Sample | None,
        progressed: bool,
        hints: Hints,
        counter: Counter | None = None,
    ) -> None:
        """Read the next line and its sample, which belongs to `counter`. `match` records matches."""
        before = self.last_time
        self.clock(line)
        self._undated += 1
        # The pattern also finds losses whose numbers are not parsed.
        if "loss" in line.text and _LOSS.search(line.text):
            self._logged, self._logged_step = self.timelines.positions, self.own_step
            self._lossy = True
        if sample is not None:
            self.sampled = True
            self._undated_steps += 1
            if counter is None or not counter.evaluates:
                positions = self.timelines.positions
                self.timelines.see(sample, line, nested=counter is not None and counter.nested)
                # The loss was printed within these steps.
                if self._lossy and self.timelines.positions != self._logged:
                    self._logged, self._logged_step = self.timelines.positions, self.own_step
                    self._lossy = False
                if self.tracebacks.ended_main or self.redraws:
                    self._see_redraw(sample, positions)
            values = sample.values
            if not METRICS.isdisjoint(values):  # checked first, because computing the steps is slower
                self.curves.see(sample, self.timelines.advances)
                if "loss" in values:
                    self._logged = self.timelines.positions
                    self._logged_step = self.own_step if sample.step is None else sample.step
                    if math.isfinite(values["loss"]) and not math.isnan(values.get("grad_norm", 0.0)):
                        self._finite_at = self.index
            if "overflow" in values and "loss_scale" in values:
                scale = values["loss_scale"]
                self.lowest_scale = scale if self.lowest_scale is None else min(scale, self.lowest_scale)
            if "skipped_steps" in values and sample.step is not None:
                self.skipped = (values["skipped_steps"], sample.step)
                if _ENGINES_COUNT.search(line.text):
                    begun, last = self.skipped_first, self.skipped_last
                    if begun is None or (last is not None and sample.step < last[1]):
                        self.skipped_first = self.skipped
                    self.skipped_last = self.skipped
        elif self.redraws and not may_hold(line.text, LAUNCHER):
            self.redraws.clear()
        if progressed:
            self.last_advance, self.after_time, self.activity_now = line, None, None
            self.turned_back = 0.0
            self.activity.clear()
        elif self.last_time is not None:
            if self.after_time is None and line.time is not None and line.time != before:
                self.after_time = line.time
            sign = int((self.last_time + self.turned_back) // ACTIVITY_SECONDS)
            if sign in self.activity or len(self.activity) < MAX_ACTIVITY:
                self.activity[sign] = self.activity.get(sign, 0) + 1
        if hints.version and self.index < VERSION_LINES and may_hold(line.text, hints.version):
            for name, version in versions_in(line.text).items():
                self.versions.setdefault(name, version)
        if hints.run and not self.of_a_run:
            self.of_a_run = belongs_to_a_run(line.text)
        if hints.launcher and may_hold(line.text, hints.launcher):
            self.summary.see(line, self.own_step, self.timelines.advances)
        self.index += 1

    def match(self, match: Match, by_progress: bool, more: int = 0) -> None:
        """Record a match of a rule in the line that was read last, and `more` matches in similar lines."""
        hits, own_step = self.hits.get(match.rule), self.own_step
        if hits is None:
            hits = self.hits[match.rule] = RuleHits(match, self.index - 1, match, 0, own_step)
        if hits.since is None or self._finite_at > hits.last_index:
            hits.since, hits.since_own_step = match, own_step
        hits.add(match, self.timelines.advances, own_step, more)
        hits.last_index, hits.last_plain = self.index - 1, self.plain
        hits.answers = self.answers
        if match.rule in self.starts:
            self.below_start = "nothing"
        if match.rule in self.timeouts:
            self.flight.see(match.line.text, match.line.rank)
        if by_progress:
            self.timelines.hit(match.rule, match.line, 1 + more)

    def see_exceptions(self, line: Line, rules: Collection[str]) -> None:
        """Search the line that was read last for exceptions. `rules` are the rules that matched the line."""
        mark = self.mark
        ended = self.tracebacks.feed(line, rules, mark, self.summary.rank)
        crash = self.crashes.feed(line, rules, mark, in_message=self.tracebacks.busy)
        for raised in (ended, crash):
            if raised is not None:
                self._add_exception(raised)
        if rules and self.tracebacks.teardown:
            for rule in rules:
                self.hits[rule].teardown += 1
                self.hits[rule].handled += self.tracebacks.handled
        self._note_exceptions()

    def _add_exception(self, raised: ExceptionChain) -> None:
        """Count an exception, and observe its process if the process's logger printed the exception."""
        self.exceptions.add(raised)
        process = raised.line.process
        # Lines without a rank and without the name of a process can be from any process or script.
        if raised.logged and (process or self.rank is not None) and len(self._worked_by) < MAX_PROCESSES:
            raised.worked = self._worked
            self._worked_by.setdefault(process, 0)

    def work_after(self, raised: ExceptionChain) -> int:
        """Return the number of lines about work that follow an exception that a logger printed.

        Return 0 if the process that printed the exception is unknown, or printed none of these lines.
        """
        if raised.worked is None or self._worked_by.get(raised.line.process, 0) <= raised.worked:
            return 0
        return self._worked - raised.worked

    def take_reason(self, line: Line, reason: str, rules: Collection[str]) -> None:
        """Add a message, and the rules that matched it, to the first recent crash that lacks its message.

        The line with the message names its rank, so it belongs to the stream of this rank. The last crash
        comes last, because its message can still follow in this stream.
        """
        crashes = [*(seen.raised for seen in self.exceptions.seen.values()), *self.crashes.left()]
        for crash in crashes:
            if crash.lacks_message and 0 < line.number - crash.line.number <= BLOCK_LINES:
                crash.message = reason
                crash.rules.update(rules)
                return

    def see_message(self, line: Line, more: int = 0) -> None:
        """Count the last line and `more` similar lines by template, unless the line is in a traceback."""
        if self.in_exception and (self.tracebacks.in_progress or self.crashes.busy):
            return
        if self.below_start and self.below_start != "output":
            self.below_start = next_state(line.text, self.below_start)
        entry = self.templates.again(line, self.index - 1, 1 + more)
        entry = entry or self.templates.add(line, self.mark, 1 + more)
        if self._worked_by and entry is not None and entry.reports_work:
            self._worked += 1 + more
            if line.process in self._worked_by:
                self._worked_by[line.process] = self._worked

    def _see_redraw(self, sample: Sample, before: Mapping[str, int]) -> None:
        """Record the steps in a bar that a program draws again when it exits with an exception.

        If other metrics or another state of the bar follow, the program has continued. `before` contains the
        number of steps of each counter before the sample.
        """
        name = sample.series
        if not sample.from_bar or name in self.redraws:
            self.redraws.clear()
        else:
            self.redraws[name] = self.timelines.positions.get(name, 0) - before.get(name, 0)

    def close_gap(self) -> None:
        """If lines were skipped after the last line that was read, update the state."""
        left_out = int(self._gaps.lines - self._left_out)
        if not left_out:
            return
        self._undated = self._undated_steps = 0  # the skipped lines can have different times
        self.redraws.clear()
        for ended in (self.tracebacks.skip(left_out), self.crashes.skip(left_out)):
            if ended is not None:
                self._add_exception(ended)
        self._note_exceptions()
        self.index += left_out
        self.plain += left_out
        self.below_start = self.below_start and "output"
        losses = int(self._gaps.losses - self._losses)
        self.timelines.leave_out(losses)
        self.templates.partial = True
        self._left_out = self._gaps.lines
        self._losses += losses  # a fraction carries over to the next gap

    def _note_exceptions(self) -> None:
        self.in_exception = self.tracebacks.busy or self.crashes.busy

    def exceptions_now(self) -> ExceptionTable:
        """Return the exceptions that were read, including exceptions whose last lines are still missing."""
        return self.exceptions.with_left([*self.tracebacks.left(self.mark), *self.crashes.left()])

    @property
    def unlogged(self) -> int:
        """The number of training steps since the last printed loss, in the counters from that time."""
        return self.timelines.trained_since(self._logged, self._logged_step)

    @property
    def own_step(self) -> int | None:
        """The last step in the lines of this stream."""
        main = self.timelines.main
        return main.last_step if main is not None else None

    @property
    def mark(self) -> LinePosition:
        """The current position in the stream, in lines, steps, and answered requests."""
        main = self.timelines.main
        advances, step = (main.advances, main.last_step) if main is not None else (0, None)
        return LinePosition(self.index - 1, advances, step, self.plain, self.answers)


SOURCE = "events.jsonl"  #: file in a run's folder with the reports of ranks

Key = tuple[str, int | None]
NO_CODES: Mapping[int, int] = MappingProxyType({})


def without_duplicate_reports(streams: Mapping[Key, StreamReading]) -> Mapping[Key, StreamReading]:
    """Return the streams, excluding ranks' reports of failures that are also in a log.

    Each failure is counted once, at the line in the log. The evidence contains the log's lines, followed by
    the ranks' reports about the failure, which can contain more details, such as a parameter's name.
    """
    logged = {rule for (source, _), stream in streams.items() if source != SOURCE for rule in stream.hits}
    echoes: dict[str, list[str]] = {}
    for (source, _), stream in streams.items():
        if source == SOURCE:
            for rule in logged & stream.hits.keys():
                echoes.setdefault(rule, []).extend(stream.hits[rule].exemplars)
    if not echoes:
        return streams
    changed = dict(streams)
    for key, stream in streams.items():
        if key[0] == SOURCE:
            hits_of = {rule: hits for rule, hits in stream.hits.items() if rule not in logged}
        elif echoes.keys().isdisjoint(stream.hits):
            continue
        else:
            hits_of = stream.hits | {
                rule: replace(hits, exemplars=[*hits.exemplars[:2], *echoes[rule]])
                for rule, hits in stream.hits.items()
                if rule in echoes
            }
        changed[key] = copy.copy(stream)
        changed[key].hits = hits_of
    return changed


def with_exit_codes(
    streams: Mapping[Key, StreamReading], codes: Mapping[int, int | None]
) -> Mapping[Key, StreamReading]:
    """Return the streams with the exit codes of ranks added, in the form in which a launcher prints them.

    If a launcher reported exit codes, the streams are unchanged. `codes` contains the exit codes of failed
    ranks that the agent observed, in the order in which the ranks ended.
    """
    if not codes or any(stream.summary.codes for stream in streams.values()):
        return streams
    reports = copy.copy(streams.get((SOURCE, None)) or StreamReading(SOURCE, None, frozenset()))
    reports.summary = LauncherSummary.seen(codes)
    return {**streams, (SOURCE, None): reports}
