"""Record the steps, times, and restarts in one stream of lines, and the matches of rules between the steps.

Memory use is bounded. If a stream has many steps, adjacent intervals are joined in pairs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from stallwatch_rules.lines import stamps
from stallwatch_rules.records import EVALUATION, Line, Sample


class Restart(msgspec.Struct, frozen=True):
    """A restart of worker processes, as shown by the lines of one source."""

    line: Line  #: the last line of the launcher before the restart
    local_ranks: tuple[int, ...]  #: local ranks (rank numbers within a node) of the workers that failed
    step: int | None  #: the last step of the run before the restart
    followed: int  #: number of steps after the restart
    #: Number of the attempt that ended, if the name of its log contains the number.
    attempt: int | None = None


class Restarts:
    """The restarts of a run, grouped by source, so that a lookup for a line reads only the line's source."""

    def __init__(self, restarts: Iterable[Restart] = ()) -> None:
        self._of_source: dict[str, list[Restart]] = {}
        for restart in restarts:
            self._of_source.setdefault(restart.line.source, []).append(restart)

    def next(self, line: Line) -> Restart | None:
        """Return the first restart that follows a line in the same source."""
        of_source = self._of_source.get(line.source, ())
        later = (restart for restart in of_source if restart.line.number >= line.number)
        return min(later, key=lambda restart: restart.line.number, default=None)


MAX_INTERVALS = 1000
MAX_TIMES = 1000
MAX_SERIES = 8
CLOCK_STEP = 60.0  #: times can decrease by up to this number of seconds without a change of the clock

#: Upper bound of the number of lines in an output buffer (8 KiB) that a program writes only when it ends.
HELD_BACK = 400


class Interval(msgspec.Struct):
    """The interval between two steps in the log. Adjacent intervals can be joined to save memory."""

    span: int  #: number of steps that were completed in the interval
    step: int | None  #: the last step in the interval
    time: float | None  #: time at which the last step was completed
    seconds: float | None  #: duration of the interval, or ``None`` if the log does not show it
    hits: dict[str, int] = {}  #: rule → number of matches in the interval
    number: int = 0  #: line number of the last step in its source
    rate: float | None = None  #: tokens per second in the last step, if known
    #: Tokens per second as printed at the last step, which can be a mean since the start of the run.
    printed_rate: float | None = None

    @property
    def pace(self) -> float | None:
        """Seconds per step in this interval."""
        return None if self.seconds is None else self.seconds / self.span

    def joined(self, later: Interval) -> Interval:
        """Return one interval that covers this interval and the next interval."""
        seconds = None if self.seconds is None or later.seconds is None else self.seconds + later.seconds
        hits = later.hits
        if self.hits:
            hits = {rule: self.hits.get(rule, 0) + hits.get(rule, 0) for rule in {*self.hits, *hits}}
        span, rate = self.span + later.span, later.rate if later.rate is not None else self.rate
        printed = later.printed_rate if later.printed_rate is not None else self.printed_rate
        return Interval(span, later.step, later.time, seconds, hits, later.number, rate, printed)


class Timeline:
    """The intervals between the steps of one counter in one stream, in order."""

    def __init__(self) -> None:
        self.source = ""  #: source of the last sample
        self.rank: int | None = None  #: rank in the line of the last sample

        #: Number of completed steps, or number of logged losses if the log has no step numbers.
        self.advances = 0
        self.total: int | None = None
        self.nested = False  #: True if the counter belongs to a bar that is drawn inside the training's bar
        self.intervals: list[Interval] = []
        self.open_hits: dict[str, int] = {}  #: rule → number of matches since the last step
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.last_time: float | None = None  #: time at which the last step was completed
        self.backs: list[int] = []  #: line numbers at which the step was lower than before
        self.left_out = 0  #: number of samples without a step number that were skipped before the next sample

        # Time of a line, and the number of completed steps at that time.
        self._time_anchor: tuple[float, int] | None = None
        # Reading of the trainer's clock, and the number of completed steps at that time.
        self._clock_anchor: tuple[float, int] | None = None
        self._width = 1  # number of steps up to which intervals are joined

    def hit(self, rule: str, count: int = 1) -> None:
        """Count matches of a rule that occurred since the last step."""
        self.open_hits[rule] = self.open_hits.get(rule, 0) + count

    def see(self, sample: Sample, line: Line | None = None) -> None:
        """Process a sample of this counter. `line` is the line of the sample, if known."""
        steps = 1
        if sample.step is None:
            steps += self.left_out
            self.left_out = 0
        else:
            went_back = self.last_step is not None and sample.step < self.last_step
            if went_back and line is not None and len(self.backs) < MAX_INTERVALS:
                self.backs.append(line.number)
            if self.last_step is None:
                if sample.from_bar and sample.step == 0:
                    return  # a progress bar at step 0 does not show a completed step
                self.first_step = sample.step
            elif sample.step > self.last_step:
                steps = sample.step - self.last_step
            elif sample.step < self.last_step / 2:  # a new epoch or a restart resets the counter
                self._time_anchor = self._clock_anchor = None
            else:
                return
            self.last_step = sample.step
        self.total = sample.total_steps or self.total
        self.advances += steps
        pace = self._pace(sample)
        seconds = None if pace is None else pace * steps
        self.last_time = sample.time
        number = 0
        if line is not None:
            self.source, self.rank, number = line.source, line.rank, line.number
        # verl divides the number of tokens in a step by the seconds of this step
        # (``verl/trainer/ppo/metric_utils.py``). In other programs, the printed rate can be a mean since the
        # start.
        of_step = line is not None and "perf/throughput" in line.text
        printed = sample.values.get("tokens_per_second")
        rate = printed if of_step else None
        self._append(
            Interval(steps, sample.step, sample.time, seconds, self.open_hits, number, rate, printed)
        )
        self.open_hits = {}

    def since(self, advances: int, step: int | None) -> int:
        """Return the number of steps since the counter had completed `advances` steps.

        If the counter has reached `step`, only steps after `step` count.
        """
        steps = self.advances - advances
        if step is None or self.last_step is None or self.last_step < step:
            return steps
        return min(steps, self.last_step - step)

    def interval_at(self, advances: int) -> Interval | None:
        """Return the interval in which the step count reached `advances`, or ``None`` if there is none."""
        done = accumulate(interval.span for interval in self.intervals)
        pairs = zip(self.intervals, done, strict=True)
        return next((interval for interval, steps in pairs if steps >= advances), None)

    def _pace(self, sample: Sample) -> float | None:
        """Return the seconds per step from line times, from the trainer's clock, or as printed in the log.

        Lines without a timestamp have the time of the previous line, and clocks show only whole seconds, so
        several steps can have the same time. The time since the last change of the clock is therefore divided
        by the number of steps since that change.
        """
        pace, self._time_anchor = _spread(self._time_anchor, sample.time, self.advances)
        elapsed = sample.values.get("elapsed_seconds")
        by_clock, self._clock_anchor = _spread(self._clock_anchor, elapsed, self.advances)
        if pace is None:
            pace = by_clock
        if pace is None and not sample.from_bar:  # a progress bar shows a mean rate of previous steps
            pace = sample.values.get("step_seconds")
        return pace

    def _append(self, interval: Interval) -> None:
        if self.intervals and self.intervals[-1].span < self._width:
            self.intervals[-1] = self.intervals[-1].joined(interval)
        else:
            self.intervals.append(interval)
        if len(self.intervals) > MAX_INTERVALS:
            pairs = zip(self.intervals[::2], self.intervals[1::2], strict=False)
            odd = self.intervals[len(self.intervals) // 2 * 2 :]
            self.intervals = [earlier.joined(later) for earlier, later in pairs] + odd
            self._width *= 2


def _spread(
    anchor: tuple[float, int] | None, moment: float | None, advances: int
) -> tuple[float | None, tuple[float, int] | None]:
    if moment is None:
        return None, anchor
    if anchor is None or moment < anchor[0]:
        return None, (moment, advances)
    if moment == anchor[0]:
        return None, anchor
    return stamps.elapsed(anchor[0], moment) / (advances - anchor[1]), (moment, advances)


class StreamTimelines:
    """The timelines of one rank in one source.

    There is one timeline for each counter, because a log can have several step counters.
    """

    def __init__(self) -> None:
        self.by_series: dict[str, Timeline] = {}
        #: counter → number of its steps; each step replaces this mapping with a new mapping
        self.positions: Mapping[str, int] = {}
        self.hit_times: dict[str, list[float]] = {}
        self._unplaced: dict[str, int] = {}  # rule → number of matches before the first sample of any counter

    @property
    def advances(self) -> int:
        """The number of steps that the main counter shows."""
        main = self.main
        return main.advances if main is not None else 0

    def hit(self, rule: str, line: Line, count: int = 1) -> None:
        """Count matches of a rule that occurred since the last step. `line` is the line of the last match."""
        self._unplaced[rule] = self._unplaced.get(rule, 0) + count
        for timeline in self.by_series.values():
            timeline.hit(rule, count)
        if line.time is not None:
            times = self.hit_times.setdefault(rule, [])
            times.append(line.time)
            if len(times) > MAX_TIMES:
                del times[1:MAX_TIMES:2]

    def trained_since(self, at: Mapping[str, int], step: int | None) -> int:
        """Return the number of steps since the counters had the values in `at`.

        Counters that first appeared later are ignored. `step` is the run's step at that time, if known. A
        counter of evaluations lags behind the training until it reaches this step.
        """
        known = ((timeline, at.get(name)) for name, timeline in self.by_series.items() if not timeline.nested)
        since = (timeline.since(then, step) for timeline, then in known if then is not None)
        return max(since, default=0)

    def see(self, sample: Sample, line: Line | None = None, *, nested: bool = False) -> None:
        """Process a sample. `line` is the line of the sample, if known.

        Set `nested` to true if the sample is from a progress bar that is drawn inside another bar.
        """
        if sample.series in ("", EVALUATION):
            return
        timeline = self.by_series.get(sample.series)
        if timeline is None:
            if len(self.by_series) >= MAX_SERIES:
                return
            timeline = self.by_series[sample.series] = Timeline()
            timeline.open_hits = dict(self._unplaced)
        timeline.nested = nested
        timeline.see(sample, line)
        if self.positions.get(sample.series) != timeline.advances:
            self.positions = {**self.positions, sample.series: timeline.advances}

    def leave_out(self, losses: int) -> None:
        """Record the number of skipped log entries that have a loss but no step number."""
        timeline = self.by_series.get("dict")
        if timeline is not None and timeline.last_step is None:
            timeline.left_out += losses

    @property
    def main(self) -> Timeline | None:
        """The timeline of the counter with the most steps.

        A progress bar with a smaller total than the longest bar is ignored, because it can belong to an
        evaluation.
        """
        longest = 0
        # This property is read for each loss, so the code creates no temporary lists.
        for timeline in self.by_series.values():
            if timeline.total is not None and timeline.total > longest:
                longest = timeline.total
        found, most, named = None, 0, ""
        for name, timeline in self.by_series.items():
            advances = timeline.advances
            if advances < most or not advances or (advances == most and name <= named):
                continue
            if not (name.startswith("bar") and (timeline.total or 0) < longest):
                found, most, named = timeline, advances, name
        return found


def longest_timeline(streams: Mapping[tuple[str, int | None], StreamTimelines]) -> Timeline | None:
    """Return the timeline with the most steps.

    If several ranks completed the same number of steps, the function returns the timeline of the lowest rank.
    """
    ordered = sorted(
        streams.items(), key=lambda item: (-item[1].advances, item[0][1] is None, item[0][1] or 0, item[0][0])
    )
    return ordered[0][1].main if ordered else None


class StepClock:
    """A clock that finds the steps that were completed before or after a time or a line."""

    def __init__(self, timeline: Timeline | None, restarts: Iterable[Restart] = ()) -> None:
        self._restarts = Restarts(restarts)
        intervals = timeline.intervals if timeline is not None else []
        self._source = timeline.source if timeline is not None else ""
        self._rank = timeline.rank if timeline is not None else None
        self._intervals = intervals
        times = [i.time for i in intervals if i.time is not None]
        if any(later < earlier - CLOCK_STEP for earlier, later in pairwise(times)):
            intervals = []  # the clock was set back, so the number of steps after a given time is unknown

        # Losses without step numbers show how many steps were completed, but not the numbers of these steps.
        numbered = ((i, -1 if i.step is None else i.step) for i in intervals)
        timed = sorted((i.time, i.span, step) for i, step in numbered if i.time is not None)
        self._times = [time for time, _, _ in timed]
        self._steps = [step if step >= 0 else None for _, _, step in timed]
        self._done = list(accumulate((span for _, span, _ in timed), initial=0))

    def after(self, time: float | None) -> int:
        """Return the number of steps that were completed after a time, or 0 if the time is unknown."""
        if time is None:
            return 0
        return self._done[-1] - self._done[bisect_right(self._times, time)]

    def below(self, line: Line, time: float) -> int | None:
        """If a line and the steps use different clocks, return how many steps follow the line in its source.

        The clocks differ if the last step that precedes the line has a later time than the line. Return
        ``None`` if the clocks do not differ. Also return ``None`` if the line and the steps are from
        different ranks, because ranks write to a file in any order.
        """
        if not self._source or line.source != self._source:
            return None
        if self._rank is not None and line.rank is not None and line.rank != self._rank:
            return None
        above = [i.time for i in self._intervals if i.time is not None and i.number < line.number]
        if not above or time >= above[-1] - CLOCK_STEP:
            return None
        return sum(interval.span for interval in self._intervals if interval.number >= line.number)

    def all_below(self, line: Line) -> int:
        """If no step precedes a line without a rank in its file, return the number of steps after the line.

        Such a line is from a launcher, or from a command that ran before the training, so it does not show
        why the steps ended. Return 0 if the last step is near the line, because the launcher might have
        written the line when it ended.
        """
        known = self._intervals
        if line.rank is not None or self._rank is None or line.source != self._source or not known:
            return 0
        if known[-1].number - line.number < HELD_BACK or any(i.number < line.number for i in known):
            return 0
        return sum(interval.span for interval in known)

    def restarted(self, line: Line) -> int:
        """Return the number of steps after the first restart of workers that follows a line."""
        restart = self._restarts.next(line)
        return restart.followed if restart is not None else 0

    def at_restart(self, line: Line) -> int | None:
        """Return the last step before the first restart of workers that follows a line."""
        restart = self._restarts.next(line)
        return restart.step if restart is not None else None

    def had_begun(self, line: Line) -> bool:
        """Return whether the order or the times of lines show that a step was completed before a line.

        A line without a time of its own has the time of an earlier line, so it is later than this time.
        """
        above = line.source == self._source and any(i.number < line.number for i in self._intervals)
        return above or self.at(line.time) is not None

    def at(self, time: float | None) -> int | None:
        """Return the last step that was completed by this time, or ``None`` if no such step is known."""
        index = bisect_right(self._times, time) if time is not None else 0
        return self._steps[index - 1] if index else None


def counts_in_intervals(intervals: Sequence[Interval], times: Sequence[float]) -> list[int] | None:
    """Count how many of the times are in each interval, and how many are after the last interval.

    Return ``None`` if any interval has no end time.
    """
    ends = [interval.time for interval in intervals]
    if any(end is None for end in ends):
        return None
    counts = [0] * (len(ends) + 1)
    bounds = [end for end in ends if end is not None]
    for time in times:
        counts[bisect_left(bounds, time)] += 1
    return counts
