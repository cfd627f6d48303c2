"""Exceptions of a run that no rule knows: which of them ended it, and whether one is the cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import Found, Streams, answers_after, steps_after
from stallwatch_rules.failures.raised import Raised, Seen, fold, of_helper, pins_batches, unknown_in
from stallwatch_rules.failures.templates import states_info
from stallwatch_rules.judgements.facts import served_on
from stallwatch_rules.progress.timeline import StepClock
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.stream import Key, RuleHits, StreamReading
from stallwatch_rules.text.digest import fold_ranks, shortened
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.reported import shown

SURVIVED = 2  #: this many further steps show that an exception did not end the run
SURVIVED_LINES = 1000  #: the same in lines, for logs whose steps are not recognized
SURVIVED_BUT_DIED = 10  #: the same if the run is known to have failed: its output may be out of order

AT_ONCE = 60  #: lines outside of tracebacks within which the parts that a stop by hand ends report it,
AT_ONCE_SECONDS = 2.0  #: and seconds, if the lines have times
SHORTLY = 300.0  #: seconds before a run's last step within which an exception may be why it stalled
BUFFERED_STEPS = 100  #: steps that training may make with data prepared by a thread or process before it died
SNIPPET_LINES = 5  #: lines after which an exception of code without a file was not the program's own

# Or a collective ended with its communicator: the reason follows the matched words, or was cut off.
_TIMED_OUT = lazy(r"Timed out waiting|timed out after \d|before timing out|^NCCL error(?: in)?: ")


class Unknown(msgspec.Struct, frozen=True):
    """One unknown exception in one stream."""

    seen: Seen
    stream: Key
    index: int  #: index of its first line in the stream
    time: float | None
    fatal: bool
    after_interrupt: bool
    followed: int = 0  #: number of steps after its last occurrence

    @property
    def timed_out(self) -> bool:
        """Whether it only shows that a wait for other ranks took too long, or was ended."""
        return bool(_TIMED_OUT.search(self.seen.raised.message))

    @property
    def shows_teardown(self) -> bool:
        """Whether it only shows that another part has ended."""
        return self.seen.raised.shows_teardown

    @property
    def lost_something(self) -> bool:
        """Whether the main thread lost a peer or waited in vain."""
        return self.seen.raised.lost_something

    @property
    def of_tracker(self) -> bool:
        """Whether it was raised in a tracker's thread, which the training does not need."""
        return self.of_thread and of_helper(self.seen.raised)

    @property
    def of_thread(self) -> bool:
        """Whether it was raised in a thread other than the main one."""
        return self.seen.raised.setting == "thread"


class Exceptions(msgspec.Struct, frozen=True):
    """All exceptions of a run."""

    unknown: Sequence[Unknown] = ()
    any: bool = False  #: whether there was any exception at all, known or not
    interrupted: bool = False  #: whether a user stopped the run with Ctrl-C
    interrupted_at: float | None = None  #: Unix seconds of the first rank's interrupt, if not survived
    beside: Collection[str] = ()  #: rules that matched only in helpers' threads
    ended_in: Collection[str] = ()  #: rules that matched an exception that nothing survived

    @property
    def fatal(self) -> list[Unknown]:
        """Exceptions that nothing survived."""
        return [one for one in self.unknown if one.fatal]

    @property
    def timed_out(self) -> bool:
        """Whether one of the fatal exceptions is a timeout."""
        return any(one.timed_out for one in self.fatal)

    def excused(self, *, only_interrupted: bool) -> Exceptions:
        """Return them with none fatal, or none of those raised when the run was stopped by hand."""
        unknown = [
            replace(one, fatal=one.fatal and only_interrupted and not one.after_interrupt)
            for one in self.unknown
        ]
        return replace(self, unknown=unknown)

    def explained(self, *, otherwise: bool) -> Exceptions:
        """Return them without fatal ones that only show that another part has ended, if that is explained.

        It is explained `otherwise`, or by another exception: not by a tracker's thread, nor by a thread that
        died after the main thread.
        """
        own = [one for one in self.fatal if not one.of_tracker]
        reasons = [one for one in own if not one.shows_teardown and not one.lost_something]
        return self._with_fatal(
            one
            for one in own or self.fatal
            if not (one.shows_teardown and otherwise) and not any(_explains(why, one) for why in reasons)
        )

    def of_helpers(self) -> Exceptions:
        """Return them with the last failure fatal that ended a thread or child while training continued."""
        main = [one for one in self.fatal if not one.seen.raised.beside]
        helpers = [
            one
            for one in self.unknown
            if one.seen.last.beside and not one.shows_teardown and one.followed <= BUFFERED_STEPS
            if not one.of_tracker and (not main or any(_explains(one, echo) for echo in main))
        ]
        last = max(helpers, key=lambda one: (-one.followed, one.time or 0.0, one.index), default=None)
        return self if last is None else self._with_fatal([last])

    def _with_fatal(self, fatal: Iterable[Unknown]) -> Exceptions:
        kept = {id(one) for one in fatal}
        return replace(self, unknown=[replace(one, fatal=id(one) in kept) for one in self.unknown])

    def are_the_cause(self, findings: Sequence[Found]) -> bool:
        """Return whether one of them, rather than one of the findings, is the cause.

        It is if no cause is known and no known symptom came before it. A kill of which only the signal is
        known is no cause if an exception of the main thread came before: ranks that wait in vain for the
        failed rank are killed, too.
        """
        fatal = [one for one in self.fatal if not one.timed_out]
        harmful = [one for one in findings if one.harm == "fatal"]
        kills = [one for one in harmful if one.role == "cause" and "signal-only" in one.facts]
        if not fatal or any(one.role == "cause" for one in harmful if one not in kills):
            return False
        # A traceback without its end, or a crash without its message, may be the symptom's own.
        named = [one for one in fatal if one.seen.raised.exception and not _wordless(one.seen.raised)]
        # One that lost its peer reports the same as the symptom, whichever came first.
        named = [one for one in named if not one.shows_teardown]
        own = [one for one in named if not one.lost_something and not one.seen.raised.beside]
        if not all(_before(own, one) for one in kills):
            return False
        return all(_before(named, one) for one in harmful if one.role == "symptom")

    def shortly_before(self, last_sign: float | None) -> UnknownException | None:
        """Return the last exception that training survived, if it came near the last sign of life.

        An actor that dies leaves its learner without data: the learner continues for a while, then waits.
        """
        recent = [
            one
            for one in self.unknown
            if last_sign is not None and one.time is not None and one.time >= last_sign - SHORTLY
        ]
        last = max(recent, key=lambda one: one.time or 0.0, default=None)
        return fold([last.seen])[0] if last is not None else None

    def records(self) -> list[UnknownException]:
        """Return the records for the diagnosis, the fatal ones first."""
        fatal = fold(one.seen for one in self.fatal)
        return fatal + fold(one.seen for one in self.unknown if not one.fatal)


def named(one: UnknownException) -> str:
    """Return the exception in one line, with its ranks, its place and its step."""
    text = shown(f"{one.exception or 'Traceback'}: {one.message}".removesuffix(": "))
    places = [f"rank {fold_ranks(one.ranks)}"] if one.ranks else []
    places += [f"{one.first.file}:{one.first.line}"]
    places += [f"step {one.first.step}"] if one.first.step is not None else []
    return f"{shortened(text)} ({', '.join(places)})"


def read_exceptions(
    streams: Streams,
    known: Mapping[str, set[Key]],
    interrupt_rules: Collection[str],  # that show that a user stopped the run
    clock: StepClock,
    *,
    symptoms: Collection[str] = (),
    aborts: Collection[str] = (),
    died: bool = False,
    complete: bool = False,
    last_step: int | None = None,
) -> Exceptions:
    """Return the exceptions of these streams; ``known`` are the rules that matched, with their streams.

    ``symptoms``: those of them that name no exception, but whose words may introduce its traceback.
    ``aborts``: those that only name a SIGABRT. ``died`` and ``complete``: the run is known to have failed, or
    to have reached its end.
    """
    unknown: list[Unknown] = []
    seen_any = interrupted = False
    interrupted_at = _interrupted_at(streams, interrupt_rules, clock)
    with_steps = {source for (source, _), stream in streams.items() if stream.last_advance is not None}
    main, beside, ended_in = set[str](), set[str](), set[str]()
    stops = _stops(streams, interrupt_rules)

    def ended(seen: Seen, key: Key) -> bool:
        return _ended(seen, key, streams, clock, with_steps, died=died, complete=complete)

    for key, stream in streams.items():
        table = stream.exceptions_now()
        seen_any = seen_any or bool(table.seen)
        interrupts = [
            _Interrupt(s.raised.mark.index, s.raised.mark.plain, stream.when(s.raised.line))
            for s in table.seen.values()
            if s.raised.exception == _INTERRUPT
        ]
        interrupted = interrupted or bool(interrupts)
        matched = [stream.hits[rule] for rule in interrupt_rules if rule in stream.hits]
        # A launcher reports it before its ranks' tracebacks.
        interrupts += [
            _Interrupt(hits.first_index, hits.last_plain, stream.when(hits.first.line)) for hits in matched
        ]
        rules = {rule for rule, where in known.items() if key in where}
        for seen in table.seen.values():
            helper = seen.raised.setting == "thread" and of_helper(seen.raised) and of_helper(seen.last)
            (beside if helper else main).update(seen.raised.rules)
            named = (seen.last.rules | seen.last.heading) & rules
            if seen.last.kind == "failure" and named:
                naming = {rule for rule in named if is_exception_line(stream.hits[rule], seen.last)}
                ended_in |= naming if ended(seen, key) else set()
        for seen in unknown_in(table, rules, aborts):
            if seen.raised.heading & (rules - set(symptoms)):
                continue
            fatal = ended(seen, key)
            followed = steps_after(stream, seen.last.line, seen.last.mark.advances, clock)
            if seen.raised.kind == "snippet":
                after = stream.plain - seen.last.mark.plain
                fatal = fatal and seen.count == 1 and not followed and after <= SNIPPET_LINES
                if not fatal:
                    continue
            first, time = seen.raised, stream.when(seen.raised.line)
            first.step = first.mark.step if first.mark.step is not None else clock.at(time)
            if first.step is None:
                first.step = clock.at_restart(first.line)
            if first.step is None and fatal:
                first.step = last_step
            late = any(one.at < first.mark.index or _at_once(seen, time, one) for one in interrupts)
            # A rank that does not report the interrupt may report what it lost by it.
            lost = first.shows_teardown or (first.lost_something and _below(first.line, stops))
            late = late or (lost and not interrupts and (time is None or interrupted_at is None))
            late = late or (time is not None and interrupted_at is not None and interrupted_at < time)
            unknown.append(Unknown(seen, key, first.mark.index, time, fatal, late, followed))
    return Exceptions(unknown, seen_any, interrupted, interrupted_at, beside - main, ended_in)


def _ended(
    seen: Seen,
    key: Key,
    streams: Streams,
    clock: StepClock,
    with_steps: Collection[str],
    *,
    died: bool,
    complete: bool,
) -> bool:
    """Whether nothing survived an exception; ``with_steps`` are the sources that show training steps."""
    stream, last = streams[key], seen.last
    enough = SURVIVED_BUT_DIED if died else 1 if last.setting == "thread" and of_helper(last) else SURVIVED
    if steps_after(stream, last.line, last.mark.advances, clock) >= enough:
        return False
    if stream.plain - last.mark.plain >= SURVIVED_LINES:
        return False
    if served_on(answers_after(key, last.mark.answers, streams), died=died):
        return False
    # Later lines prove nothing for a warning: some collectors log all of stderr as warnings.
    if last.warned and not died and key[0] not in with_steps and _went_on(stream, last.mark.index):
        return False
    if last.beside and last.shows_teardown:
        # A tracker's process ended, which the training does not need, or the program printed more since.
        tracker = last.setting == "thread" and of_helper(last)
        if tracker or stream.plain - last.mark.plain > AT_ONCE:
            return False
    return not (complete and (last.setting != "main" or last.native))


def _went_on(stream: StreamReading, index: int) -> bool:
    """Whether more messages below warning level followed a line than are usual at an end."""
    entries = stream.templates.entries.values()
    later = (entry for entry in entries if entry.last_index > index)
    return sum(states_info(entry.last.text) for entry in later) > SNIPPET_LINES


def is_exception_line(hits: RuleHits, raised: Raised) -> bool:
    """Whether a rule's last match is the exception itself, not a line between its calls."""
    line = hits.last.line
    return line.number == raised.line.number or bool(raised.root and raised.root in line.text)


def _at_once(seen: Seen, time: float | None, stop: _Interrupt) -> bool:
    """Whether Ctrl-C ended what a thread's or child's exception reports as lost.

    Its lines may come before the interrupt's. But a thread that fetches batches may also have lost its peer
    long before a user stopped the waiting run: then other lines, or the times, separate them. For a thread
    that pins batches, times cannot show this: its workers end first, and it is slow to notice.
    """
    first = seen.raised
    beside = first.beside or of_helper(first)
    near = first.mark.index < stop.at and stop.plain - first.mark.plain <= AT_ONCE
    if not (beside and first.shows_teardown and near):
        return False
    slow = pins_batches(first) and pins_batches(seen.last)
    return slow or time is None or stop.time is None or stop.time - time <= AT_ONCE_SECONDS


class _Interrupt(NamedTuple):
    """Position at which a stream shows that it was interrupted."""

    at: int
    plain: int  #: lines outside of tracebacks before it
    time: float | None


_INTERRUPT = "KeyboardInterrupt"


def _stops(streams: Streams, rules: Collection[str]) -> list[Line]:
    """Return the lines of all ranks that show that a user stopped the run."""
    tables = (one.exceptions_now().seen.values() for one in streams.values())
    raised = [one.raised.line for table in tables for one in table if one.raised.exception == _INTERRUPT]
    matched = [one.hits[rule].first.line for one in streams.values() for rule in rules if rule in one.hits]
    return raised + matched


def _below(line: Line, stops: Iterable[Line]) -> bool:
    """Whether a line is below one of the others in the same file."""
    return any(stop.source == line.source and stop.number < line.number for stop in stops)


def _interrupted_at(streams: Streams, rules: Collection[str], clock: StepClock) -> float | None:
    """Return when the first stream was interrupted (Unix seconds); ``None`` if training continued."""
    matched = ((one, one.hits[rule]) for one in streams.values() for rule in rules if rule in one.hits)
    times = [time for stream, hits in matched if (time := stream.when(hits.first.line)) is not None]
    return min(times) if times and clock.after(min(times)) < SURVIVED else None


def _wordless(raised: Raised) -> bool:
    """Whether it is a crash of compiled code without its message, which is among another rank's lines."""
    return raised.native and not raised.message and raised.exception.lower().endswith("error")


def _explains(why: Unknown, echo: Unknown) -> bool:
    """Whether a failure explains another exception, which shows that another part has ended."""
    if why.stream == echo.stream:
        later = why.of_thread and not echo.seen.raised.beside and why.index > echo.index
        return (echo.shows_teardown or (echo.lost_something and why.seen.raised.beside)) and not later
    return echo.shows_teardown


def _before(fatal: Iterable[Unknown], symptom: Found) -> bool:
    """Whether one of the exceptions came before a symptom, as far as the log shows."""
    for one in fatal:
        if symptom.rule in one.seen.raised.heading:
            return True
        own = [place for place in symptom.occurrences if place.stream == one.stream]
        if own:
            if one.index < min(place.position for place in own):
                return True
            continue
        times = [place.time for place in symptom.occurrences if place.time is not None]
        if one.time is None or len(times) < len(symptom.occurrences) or one.time <= min(times, default=0.0):
            return True
    return False
