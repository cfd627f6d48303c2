"""Read the lines of a run and diagnose them, both for live watching and for post-mortems.

The caller feeds lines as they arrive, in portions of any size and with the ranks interleaved in any way. Each
source and rank has a separate state of bounded size. ``diagnose`` combines these states and can be called at
any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stallwatch_rules.diagnosis.clocks import clocks_ahead, events_of
from stallwatch_rules.diagnosis.conclude import conclude
from stallwatch_rules.diagnosis.hosts import hosts_of
from stallwatch_rules.diagnosis.snapshot import RunContext
from stallwatch_rules.diagnosis.starts import add_starts, came_after, ended_in_trouble, start_of
from stallwatch_rules.end_lines import OWN_LINE, StatedEnd, chosen_end, end_of_run, own_text, stated_end
from stallwatch_rules.endings import Crash, Ending, ExitedRank, MemoryUse
from stallwatch_rules.failures.crashes import stated_reason
from stallwatch_rules.failures.quotations import quoted_spans
from stallwatch_rules.failures.unexplained import Baseline, with_explanations
from stallwatch_rules.hints import Hints, is_warning, may_hold
from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.progress.activities import follow
from stallwatch_rules.progress.phases import is_answer
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Diagnosis, Line, Match, Sample
from stallwatch_rules.samples.series import SERIES, SeriesReader
from stallwatch_rules.starts import (
    FRESH,
    MOST_WAITING,
    Candidate,
    Head,
    Part,
    Starts,
    digitless_keys,
    may_hold_marks,
)
from stallwatch_rules.stream import SOURCE as OWN_REPORTS
from stallwatch_rules.stream import (
    Key,
    SkippedLines,
    StreamReading,
    with_exit_codes,
    without_duplicate_reports,
)
from stallwatch_rules.text.redact import LineMasker, is_key_line, redact, redact_part

#: Maximum number of streams, one for each source and rank. A stream takes about 8 KiB. With 100,000 files, a
#: process uses less than 400 MB.
MAX_STREAMS = 20_000
_MAX_RANKS = 4096  # maximum number of ranks in one source; text with more ranks is not a log


class Observed(msgspec.Struct):
    """The matches of rules, the samples of metrics, and the warnings found in one portion of lines."""

    matches: list[Match] = []
    samples: list[Sample] = []
    warnings: list[Line] = []


class SkippedCount(NamedTuple):
    """Counts of skipped lines: lines before a line that is read, and similar lines that it represents."""

    before: int  #: index of the line that follows the skipped lines
    source: str
    segments: int = 0  #: number of skipped lines and progress bar updates
    kinds: Collection[str] = ()  #: kinds of metrics that the skipped lines can contain
    losses: int = 0  #: number of skipped metrics lines that have a loss but no step
    more: Sequence[tuple[str, int]] = ()  #: rule ("" for no rule) and number of additional matches


class PartialReading(NamedTuple):
    """The state after reading some sources of a run. Another process merges this state with other states."""

    streams: dict[Key, StreamReading]
    tracker: ProgressTracker
    unread: set[str]


class _Before(NamedTuple):
    """The state of the reader before a line at which the program might have restarted."""

    streams: dict[Key, StreamReading]
    streams_of: dict[str, int]
    tracker: ProgressTracker
    series: SeriesReader
    gaps: dict[str, SkippedLines]
    first: Line
    last: Line
    diagnosis: Diagnosis | None = None


class RunReading:
    """A reader of the lines of a run. The run can be diagnosed at any time from the lines read so far.

    If `starts` is true, the lines must be all lines of one source. If the program of the source was started
    several times, each start is diagnosed separately. If `starts` is false, all lines belong to one run. Use
    this value for a run that is watched live, and for several sources, because not every source shows each
    start.
    """

    def __init__(self, catalogue: Catalogue, matcher: Matcher | None = None, *, starts: bool = False) -> None:
        self.catalogue = catalogue
        self.matcher = matcher if matcher is not None else Matcher(catalogue)
        self.baseline: Baseline | None = None  #: lines of a healthy run, to find new lines in this run
        self.tracker = ProgressTracker()
        self.streams: dict[tuple[str, int | None], StreamReading] = {}
        self.unread: set[str] = set()  #: sources that were not read because the run has too many sources
        self.alike: Mapping[str, Sequence[int]] = {}  #: source → ranks of unread sources with the same lines
        self.silent: Collection[int] = ()  #: ranks with empty logs
        self.hosts: Mapping[str, str] = {}  #: source → host named by the source
        self.ranks_on: Mapping[int, str] = {}  #: rank → host named by the rank's source
        self._streams_of: dict[str, int] = {}  # source → number of its streams
        self.splits_starts = starts
        self.starts = Starts()  #: the completed starts of the source
        self._part: Part | None = None  # the part since the newest start
        self._before: _Before | None = None  # the state before a line at which another start can begin
        self._replaying = False
        self._gaps: dict[str, SkippedLines] = {}
        self._series = SeriesReader()
        self._keys: dict[Key, LineMasker] = {}  # streams whose last line was part of a private key
        self._failures = catalogue.failures
        self._timeouts = catalogue.tagged("flight-data")
        self._start_rules = catalogue.tagged("start-failed")
        self._by_progress = frozenset(
            page.id
            for page in catalogue.pages.values()
            if page.patterns and (page.harm == "by-progress" or "nan-gradient" in page.tags)
        )

    def feed(self, lines: Sequence[Line], asides: Sequence[SkippedCount] = ()) -> Observed:
        """Read more lines and return the matches, samples, and warnings that they contain.

        The lines of each source and rank must be in order. `asides` contains the counts of lines that were
        skipped between these lines, in the same order.
        """
        observed = Observed()
        waiting = deque(asides)
        if not lines:
            self._take_asides(waiting, 0)
            return observed
        text = "\n".join([line.text for line in lines])
        scan = self.matcher.scan(lines)
        raw, lines = lines, self._masked(lines, text)  # only the matcher receives unmasked lines
        hits: dict[int, list[tuple[str, dict[str, str]]]] = {}
        for index, rule, captures in scan.matches:
            if captures and lines[index] is not raw[index]:
                clean = lines[index].text
                captures = {name: redact_part(value, clean) for name, value in captures.items()}
            hits.setdefault(index, []).append((rule, captures))
        contexts: dict[int, list[str]] = {}
        for index, rule in scan.contexts:
            contexts.setdefault(index, []).append(rule)
        hints = Hints.of(text)
        # A scheduler's log also contains messages from Stallwatch. These messages quote lines of the run, so
        # they are not additional evidence. Only the line that states how the command ended is read.
        own_words = OWN_LINE in text
        splits = self.splits_starts and not self._replaying
        keys = digitless_keys(lines, text) if splits else []
        marked = splits and may_hold_marks(text)
        stream: StreamReading | None = None
        part: Part | None = None
        more: dict[str, int] = {}
        for index, line in enumerate(lines):
            if waiting and waiting[0].before <= index:
                more = self._take_asides(waiting, index)
                stream = None
            if own_words and own_text(line.text) is not None:
                self._read_own(line)
                continue
            if splits:
                part = self._part = self._part or Part(line, line, [Head()])
                if (marked or keys[index] in part.known) and self._may_begin(part, keys[index], line, marked):
                    stream = None
            if stream is None or line.rank != stream.rank or line.source != stream.source:
                stream = self._stream(line)
                if stream is None:
                    continue
                stream.close_gap()
            if index in contexts:
                stream.contexts.update(contexts[index])
            sampled = self._read(stream, line, hits.get(index, ()), hints, observed, more)
            if part is None:
                continue
            part.last = line
            if part.busy:
                ends = sampled is not None or stream.in_exception
                if not ends and index in hits:
                    ends = any(rule in self._failures for rule, _ in hits[index])
                part.learn(keys[index], raw[index], ends=ends)
                if part.candidate is not None and self._decided(part, line, sampled):
                    stream = None
        self._take_asides(waiting, len(lines))
        return observed

    def _read_own(self, line: Line) -> None:
        """Read a line that Stallwatch printed. Only the line that states how the command ended counts."""
        end = stated_end(line)
        stream = self._stream(line) if end is not None else None
        if end is not None and stream is not None:
            stream.stated_end = chosen_end(stream.stated_end, end)
            if self._part is not None and self._part.candidate is not None and not self._replaying:
                self._part.candidate.lines.append(line)  # read again if no other start began

    @property
    def stated_end(self) -> StatedEnd | None:
        """The end of the run as an agent stated it in the log, for `diagnose` after the run has ended."""
        self.settle()
        return end_of_run(self.streams)

    def _masked(self, lines: Sequence[Line], text: str) -> Sequence[Line]:
        """Return the lines with their secrets masked. `text` contains all lines, joined."""
        clean = redact(text)
        if clean == text and not self._keys:
            return lines
        texts = clean.split("\n")
        if len(texts) != len(lines):  # a line contains line breaks
            texts = [redact(line.text) for line in lines]
        masked = []
        for line, shown in zip(lines, texts, strict=True):
            key = (line.source, line.rank)
            if key in self._keys or is_key_line(line.text):
                masker = self._keys.setdefault(key, LineMasker())
                shown = masker(line.text)
                if not masker.after_key:
                    del self._keys[key]
            masked.append(line if shown == line.text else msgspec.structs.replace(line, text=shown))
        return masked

    def _take_asides(self, waiting: deque[SkippedCount], index: int) -> dict[str, int]:
        """Record the lines that were skipped before a line.

        Returns:
            For each rule, the number of its matches in the skipped lines that this line represents.
        """
        more: dict[str, int] = {}
        while waiting and waiting[0].before <= index:
            aside = waiting.popleft()
            more = dict(aside.more)
            part = self._part
            if part is not None and part.candidate is not None and not self._replaying:
                part.candidate.asides.append(aside._replace(before=len(part.candidate.lines)))
            if aside.segments:
                gaps = self._gaps.setdefault(aside.source, SkippedLines())
                gaps.add(aside.segments, aside.losses, self._streams_of.get(aside.source, 0))
                self.tracker.skip(aside.source, {*aside.kinds, SERIES})
        return more

    def take_report(self, match: Match, more: int = 0) -> None:
        """Record a match that a rank reported but no log contains.

        `more` is the number of similar matches.
        """
        stream = self._stream(match.line)
        if stream is not None:
            stream.read(match.line, None, False, Hints.of(""))
            stream.match(match, match.rule in self._by_progress, more)

    def withdraw(self, rule: str, capture: str, value: str) -> None:
        """Remove a rule's reports whose capture has this value, because the reported condition has ended."""
        for (source, _), stream in self.streams.items():
            hits = stream.hits.get(rule) if source == OWN_REPORTS else None
            if hits is not None and hits.first.captures.get(capture) == value:
                del stream.hits[rule]

    def step(self, sample: Sample, source: str) -> None:
        """Record a step that a rank reported itself. The step is stored separately from the steps in logs."""
        stream = self._stream(Line("", source, 0, sample.rank, sample.time))
        if stream is not None:
            stream.timelines.see(sample)

    def environment(self, versions: Mapping[str, str], source: str, rank: int | None) -> None:
        """Record the versions of libraries that a rank imported.

        These versions are more reliable than the versions in a log.
        """
        stream = self._stream(Line("", source, 0, rank))
        if stream is not None:
            stream.versions.update(versions)

    def parted(self) -> PartialReading:
        """Return this reader's state, excluding compiled patterns, so that another process can merge it."""
        return PartialReading(self.streams, self.tracker, self.unread)

    def merge(self, other: PartialReading) -> None:
        """Add the state of other sources, which must have been read completely."""
        for key, stream in other.streams.items():
            if len(self.streams) < MAX_STREAMS:
                self.streams[key] = stream
            else:
                self.unread.add(stream.source)
        self.unread |= other.unread
        self.tracker.merge(other.tracker)

    def diagnose(
        self,
        ending: Ending | None = None,
        *,
        now: float | None = None,
        threshold: float | None = None,
        stalled: bool = False,
        waited: float | None = None,
        ended_at: float | None = None,
        memory: MemoryUse | None = None,
        left: Sequence[ExitedRank] = (),
        elsewhere: Sequence[int] = (),
        watched: bool = False,
        failed_program: Crash | None = None,
    ) -> Diagnosis:
        """Diagnose the lines read so far.

        `ending` describes how the command ended, if known. `now`, `threshold`, `stalled`, and `waited`
        (seconds without a step) come from the agent that watches or watched the run live. `ended_at` is the
        time at which the run ended, according to the log's clock. `memory` and `left` (ranks that ended
        before the other ranks) are for a run that has not ended. For other runs, `ending` contains both. If
        stacks show that the ranks for which other ranks wait are outside of collectives, `elsewhere` contains
        the awaited ranks. `watched` means that an agent still watches the run. `failed_program` is a program
        of the run that failed while another program continues.
        """
        self.settle()
        codes: Mapping[int, int | None] = {}
        if ending is not None:
            memory, left, codes = memory or ending.memory, left or ending.left, ending.codes
        context = RunContext(
            ending,
            now,
            threshold,
            stalled,
            waited,
            ended_at,
            memory,
            left,
            elsewhere,
            watched,
            self.alike,
            self.silent,
            self.hosts,
            self.ranks_on,
            failed_program,
        )
        streams = with_exit_codes(without_duplicate_reports(self.streams), codes)
        diagnosis = conclude(streams, self.tracker, self.catalogue, self.matcher.conditional, context)
        ended = ending is not None or now is not None
        if self._part is not None and self.starts.count:
            add_starts(diagnosis, self.starts, streams, self._part)
        return with_explanations(diagnosis, streams, self.catalogue, self.baseline, ended=ended)

    def clocks_ahead(self) -> Mapping[str, float]:
        """For each host, return the known seconds by which the host's clock is ahead of most other clocks."""
        hosts = hosts_of(self.streams, self.hosts, self.ranks_on)
        return clocks_ahead(events_of(self.streams, hosts.of_streams)) if hosts else {}

    # ---- starts

    def settle(self) -> None:
        """Decide whether another start began at the candidate line.

        Call this method at the end of the source.
        """
        if self._part is not None and self._before is not None:
            self._settle(self._part, began=self._began(self._part, self._before))

    def _may_begin(self, part: Part, key: bytes, line: Line, marked: bool) -> bool:
        """If the program can start at a line, make the line the candidate for a start and save the state.

        Return whether the program can start at the line.
        """
        if (candidate := part.sign(key, line, marked=marked)) is None or not self._did_anything():
            return False
        self._before = _Before(
            self.streams, self._streams_of, self.tracker, self._series, self._gaps, part.first, part.last
        )
        self.streams, self._streams_of, self._gaps = {}, {}, {}
        self.tracker, self._series = ProgressTracker(), SeriesReader()
        part.candidate, part.busy = candidate, True
        return True

    def _did_anything(self) -> bool:
        """Return whether the lines that were read contain training metrics or a failure."""
        return any(
            stream.sampled
            or stream.in_exception
            or stream.exceptions.seen
            or not self._failures.isdisjoint(stream.hits)
            for stream in self.streams.values()
        )

    def _decided(self, part: Part, line: Line, sample: Sample | None) -> bool:
        """If the lines read so far are sufficient, decide whether another start begins at the candidate line.

        Return False if the decision needs more lines.
        """
        candidate, before = part.candidate, self._before
        assert candidate is not None and before is not None
        stepped = sample is not None and sample.step is not None and self._is_counted(sample, line)
        if before.diagnosis is None and candidate.is_likely:
            found = self._concluded(before.streams, before.tracker)
            before = self._before = before._replace(diagnosis=found)
        began: bool | None = None
        if before.diagnosis is None:
            began = False if stepped else None
        elif ended_in_trouble(before.diagnosis) and came_after(part.head, before.diagnosis):
            back = before.tracker.goes_back(sample) if stepped and sample else None
            began = self._is_anew(candidate, before, continues=back is False)
            began = began if stepped else began or None
        elif not before.tracker.progressed:
            began = False
        elif stepped and sample and (back := before.tracker.goes_back(sample)) is not None:
            began = back and (candidate.mark is not None or candidate.again.is_whole)
        elif candidate.again.is_whole and any(stream.exceptions.seen for stream in self.streams.values()):
            began = True  # the program failed before its first step
        elif len(candidate.lines) <= MOST_WAITING:
            return False
        if candidate.is_over:
            began = bool(began)
        elif began and not self._did_anything():
            return False  # the steps can continue the steps of the previous part
        if began is None:
            return False
        self._settle(part, began=began)
        return True

    def _is_counted(self, sample: Sample, line: Line) -> bool:
        counter = self.tracker.counter(sample, line)
        return counter is not None and not counter.nested

    def _is_anew(self, candidate: Candidate, before: _Before, *, continues: bool = False) -> bool:
        """Return whether lines that recur after a failure show another start, not another rank or worker."""
        if candidate.mark is not None:
            return True
        # A launcher can restart its workers, and several ranks can print the same lines in succession.
        again = candidate.again
        stops = [stop for stream in before.streams.values() for stop in stream.summary.stops]
        if again.is_launched is not None or (stops and stops[-1].over is None):
            return bool(again.is_launched)
        of_one = before.tracker.progressed or not again.head.is_of_several
        return of_one and again.is_at_the_top and not continues

    def _began(self, part: Part, before: _Before) -> bool:
        """If the source ends shortly after the candidate line, return whether another start began there."""
        candidate, diagnosis = part.candidate, before.diagnosis
        if candidate is None or diagnosis is None:
            return False
        if candidate.fresh > FRESH and ended_in_trouble(diagnosis) and came_after(part.head, diagnosis):
            return self._is_anew(candidate, before)
        if candidate.mark is not None and candidate.mark.usage:
            return True
        enough = self._did_anything() and candidate.again.is_whole
        return enough and ended_in_trouble(self._concluded(self.streams, self.tracker))

    def _concluded(self, streams: Mapping[Key, StreamReading], tracker: ProgressTracker) -> Diagnosis:
        end, context = end_of_run(streams), RunContext()
        if end is not None:
            ending = end.ending
            context = RunContext(ending, stalled=end.stalled, waited=ending.quiet, memory=ending.memory)
        return conclude(streams, tracker, self.catalogue, self.matcher.conditional, context)

    def _settle(self, part: Part, *, began: bool) -> None:
        """Begin another start at the candidate line, or continue the current start with the lines after it.

        Only the result of a start that has ended is kept.
        """
        before, self._before = self._before, None
        assert before is not None
        if began:
            found = before.diagnosis or self._concluded(before.streams, before.tracker)
            self.starts.add(start_of(found, before.streams, before.first, before.last))
            part.begin()
            return
        candidate = part.go_on()
        self.streams, self._streams_of, self._gaps = before.streams, before.streams_of, before.gaps
        self.tracker, self._series = before.tracker, before.series
        self._replaying = True
        self.feed(candidate.lines, candidate.asides)
        self._replaying = False

    def _share_reason(self, stream: StreamReading, line: Line, reason: str, rules: Collection[str]) -> None:
        """If a C++ exception began in the stream without a rank, pass its message to that stream.

        Example: ``terminate called …`` names no rank, but ``what():  [Rank 3] Watchdog caught …`` does.
        """
        unranked = self.streams.get((line.source, None))
        if unranked is not None and not any(crash.lacks_message for crash in stream.crashes.left()):
            unranked.take_reason(line, reason, rules)

    def _stream(self, line: Line) -> StreamReading | None:
        key = (line.source, line.rank)
        stream = self.streams.get(key)
        if stream is None:
            ranks = self._streams_of.get(line.source, 0)
            if len(self.streams) >= MAX_STREAMS:
                if not ranks:
                    self.unread.add(line.source)
                return None
            if ranks >= _MAX_RANKS:
                return None
            gaps = self._gaps.setdefault(line.source, SkippedLines())
            stream = self.streams[key] = StreamReading(
                line.source, line.rank, self._failures, gaps, self._timeouts, self._start_rules
            )
            self._streams_of[line.source] = ranks + 1
        return stream

    def _read(
        self,
        stream: StreamReading,
        line: Line,
        hits: Sequence[tuple[str, dict[str, str]]],
        hints: Hints,
        observed: Observed,
        more: dict[str, int],
    ) -> Sample | None:
        sample = self._series.read(line)
        progressed, counter = False, None
        if sample is not None:
            progressed = self.tracker.add(sample, line)
            counter = self.tracker.counter(sample, line) if sample.from_bar else None
            observed.samples.append(sample)
        elif hints.sign and may_hold(line.text, hints.sign):
            self.tracker.add(None, line)
        stream.read(line, sample, progressed, hints, counter)
        busy = stream.activity_now
        if busy is not None and busy.after is None:
            if not (hits or stream.in_exception or (sample is not None and sample.from_bar)):
                stream.activity_now = follow(busy, line)
        elif hints.activity and sample is None and may_hold(line.text, hints.activity):
            stream.activity_now = follow(busy, line)
        if hints.serving and may_hold(line.text, hints.serving) and is_answer(line.text):
            stream.answers += 1 + more.get("", 0)
        if hits and (stream.tracebacks.quotes(line.text) or is_training_data(line.text)):
            # Training data, and source code after a traceback frame, mention failures that did not happen.
            hits = ()
        elif hits and (spans := quoted_spans(line.text)):
            hits = [hit for hit in hits if not self._is_quoted(hit[0], line.text, spans)]
        line = stream.dated(line)
        for rule, captures in hits:
            match = Match(rule, line, captures, self.tracker.last_step)
            stream.match(match, rule in self._by_progress, more.pop(rule, 0))
            if rule not in self.matcher.conditional or rule in stream.contexts:
                observed.matches.append(match)
        if hits or stream.in_exception or (hints.traceback and may_hold(line.text, hints.traceback)):
            rules = [rule for rule, _ in hits]
            if rules and line.rank is not None and (reason := stated_reason(line.text)):
                self._share_reason(stream, line, reason, rules)
            stream.see_exceptions(line, rules)
        stream.plain += not stream.in_exception
        if sample is None and not hits:
            stream.see_message(line, more.pop("", 0))
        if hints.warning and sample is None and is_warning(line.text):
            observed.warnings.append(line)
        return sample

    def _is_quoted(self, rule: str, text: str, spans: Sequence[tuple[int, int]]) -> bool:
        """Return whether the rule for a failure matches only quotations in a line."""
        if rule not in self._failures:
            return False
        patterns = (cached_re2(pattern, encoded=False) for pattern in self.catalogue.pages[rule].patterns)
        places = [found.start() for pattern in patterns for found in pattern.finditer(text)]
        # If the pattern matches nowhere, the match was in the masked part of the line.
        return bool(places) and all(any(start <= at < end for start, end in spans) for at in places)
