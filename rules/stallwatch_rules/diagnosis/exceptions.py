"""Find the exceptions of a run that match no rule, and decide whether they caused the run to fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import RuleFinding, Streams, answers_after, steps_after
from stallwatch_rules.endings import Crash
from stallwatch_rules.failures.raised import (
    CountedException,
    ExceptionChain,
    fold,
    of_command,
    of_helper,
    pins_batches,
    unknown_in,
)
from stallwatch_rules.failures.templates import states_info
from stallwatch_rules.judgements.facts import continued_to_serve
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.timeline import StepClock
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line, UnknownException
from stallwatch_rules.stream import Key, RuleHits, StreamReading
from stallwatch_rules.text.digest import fold_ranks, shortened
from stallwatch_rules.text.display import shown
from stallwatch_rules.text.lazy import lazy

SURVIVED = 2  #: minimum number of steps that follow an exception that did not end the run
#: Minimum number of lines that follow such an exception in a log whose steps are not recognized.
SURVIVED_LINES = 1000
#: Minimum number of steps that follow such an exception in a run that is known to have failed. The minimum is
#: higher because the output of such a run might be out of order.
SURVIVED_BUT_DIED = 10

#: Maximum number of lines, not counting tracebacks, between the reports of processes or threads that end at
#: the same time, for example, after Control+C.
AT_ONCE = 60
AT_ONCE_SECONDS = 2.0  #: maximum time between these reports, in seconds, if their times are known
#: Maximum time, in seconds, between an exception that explains a stall and the last step of the run.
SHORTLY = 300.0
#: Maximum number of steps for which training can continue after the thread or process that prepares its data
#: has died.
BUFFERED_STEPS = 100
#: Maximum number of messages that a program prints after an exception that ended the program, if the code
#: that raised the exception has no file.
SNIPPET_LINES = 5

# Messages about a wait that timed out, or about a collective that ended with its communicator. The reason
# follows the matched words, unless the reason was truncated.
_TIMED_OUT = lazy(r"Timed out waiting|timed out after \d|before timing out|^NCCL error(?: in)?: ")

# Messages in which a program reports that another process ended.
_EXIT_OF_CHILD = lazy(r"(?i)\bexit(?:ed|ing|s)?[ _-]?(?:with )?(?:code|status)\b|\bexited\b|\bnon-?zero\b")


class Unknown(msgspec.Struct, frozen=True):
    """An exception in one stream that matches no rule."""

    seen: CountedException
    stream: Key
    index: int  #: index of the exception's first line in the stream
    time: float | None
    fatal: bool
    after_interrupt: bool
    followed: int = 0  #: number of steps after the exception's last occurrence
    #: True if a launcher's summary quotes the exception as the first failure.
    first_failure: bool = False

    @property
    def timed_out(self) -> bool:
        """True if the exception shows only that a wait for other ranks timed out or was stopped."""
        return bool(_TIMED_OUT.search(self.seen.raised.message))

    @property
    def shows_teardown(self) -> bool:
        """True if the exception shows only that another part of the program has ended."""
        return self.seen.raised.shows_teardown

    @property
    def lost_something(self) -> bool:
        """True if the exception shows that the main thread lost a peer or timed out while waiting."""
        return self.seen.raised.lost_something

    @property
    def of_tracker(self) -> bool:
        """True if the exception is from a thread of an experiment tracker, which training does not need."""
        return self.of_thread and of_helper(self.seen.raised)

    @property
    def of_thread(self) -> bool:
        """True if the exception was raised in a thread other than the main thread."""
        return self.seen.raised.setting == "thread"

    @property
    def is_of_main_program(self) -> bool:
        """True if the exception describes a failure of the program itself, not of a process that it needs."""
        reports = self.timed_out or self.shows_teardown or self.lost_something
        reports = reports or bool(_EXIT_OF_CHILD.search(self.seen.raised.message))
        return self.seen.raised.setting == "main" and not reports


class Exceptions(msgspec.Struct, frozen=True):
    """The exceptions of a run."""

    unknown: Sequence[Unknown] = ()
    any: bool = False  #: True if the run raised any exception, known or unknown
    interrupted: bool = False  #: True if a user stopped the run with Control+C
    interrupted_at: float | None = None  #: Unix time of the first interrupt, or None if training continued
    beside: Collection[str] = ()  #: rules that matched only in helper threads
    #: Rules that matched only in threads other than the main thread, or in helper processes.
    of_threads: Collection[str] = ()
    of_commands: Collection[str] = ()  #: rules that matched only in programs that have no file (`python -c`)
    ended_in: Collection[str] = ()  #: rules that matched an exception that ended the run
    #: Rules that matched only in a script that started after an unknown exception ended another script.
    next_program: Collection[str] = ()

    @property
    def fatal(self) -> list[Unknown]:
        """The exceptions that ended the run or a part of it."""
        return [exception for exception in self.unknown if exception.fatal]

    def starves(self, rule: str, followed: int, *, stalled: bool) -> bool:
        """Return whether a rule matched the end of a thread or process and the run stalled shortly afterward.

        Training continues with the data that the thread or process had prepared, and then waits.
        """
        return stalled and rule in self.of_threads and followed <= BUFFERED_STEPS

    @property
    def timed_out(self) -> bool:
        """True if one of the exceptions that ended the run is a timeout."""
        return any(exception.timed_out for exception in self.fatal)

    def excused(self, *, only_interrupted: bool) -> Exceptions:
        """Return the exceptions without their fatal marks.

        If `only_interrupted` is true, only exceptions that were raised after an interrupt lose their marks.
        """
        unknown = [
            replace(exception, fatal=exception.fatal and only_interrupted and not exception.after_interrupt)
            for exception in self.unknown
        ]
        return replace(self, unknown=unknown)

    def with_crash(self, crash: Crash, every: int) -> Exceptions:
        """Return the exceptions. Those that ended the process of `crash` are marked as fatal.

        Other processes might have continued. `every` is the logging interval in steps.
        """
        unknown = [
            replace(exception, fatal=True, followed=0)
            if exception.seen.last.kind == "failure"
            and crash.is_at(exception.seen.last.mark.step, exception.time, every)
            else exception
            for exception in self.unknown
        ]
        return replace(self, unknown=unknown)

    def explained(self, *, otherwise: bool) -> Exceptions:
        """Return the exceptions. Those that another failure explains are no longer marked as fatal.

        An exception can lose the mark only if it reports the end of another part of the program, such as a
        peer. It loses the mark if another exception explains it, or if `otherwise` is true. An exception in a
        tracker's thread, or in a thread that died after the main thread, does not explain other exceptions.
        """
        without_trackers = [exception for exception in self.fatal if not exception.of_tracker]
        reasons = [
            exception
            for exception in without_trackers
            if not exception.shows_teardown and not exception.lost_something
        ]
        return self._with_fatal(
            exception
            for exception in without_trackers or self.fatal
            if not (exception.shows_teardown and otherwise)
            and not any(_explains(why, exception) for why in reasons)
        )

    def of_helpers(self) -> Exceptions:
        """Return the exceptions. Only the last failure of a helper thread or process is marked as fatal.

        The failure counts only if training continued for at most ``BUFFERED_STEPS`` steps after it. If there
        is no such failure, the exceptions are returned unchanged.
        """
        main = [exception for exception in self.fatal if not exception.seen.raised.beside]
        helpers = [
            exception
            for exception in self.unknown
            if exception.seen.last.beside
            and not exception.shows_teardown
            and exception.followed <= BUFFERED_STEPS
            if not exception.of_tracker and (not main or any(_explains(exception, echo) for echo in main))
        ]
        last = max(
            helpers,
            key=lambda exception: (-exception.followed, exception.time or 0.0, exception.index),
            default=None,
        )
        return self if last is None else self._with_fatal([last])

    def _with_fatal(self, fatal: Iterable[Unknown]) -> Exceptions:
        kept = {id(exception) for exception in fatal}
        return replace(
            self, unknown=[replace(exception, fatal=id(exception) in kept) for exception in self.unknown]
        )

    def are_the_cause(self, findings: Sequence[RuleFinding]) -> bool:
        """Return whether an exception, rather than one of the findings, is the cause of the failure.

        An exception is the cause if no cause is known and no known symptom came before it. A kill is not a
        cause if its only evidence is the signal and an exception in the main thread came before it. After
        such an exception, ranks that wait for the failed rank are also killed. Missing input is not a cause
        in a script that was started after another script failed. For example, an evaluation lacks the files
        that the training did not save.
        """
        fatal = [exception for exception in self.fatal if not exception.timed_out]
        harmful = [finding for finding in findings if finding.harm == "fatal"]
        kills = [finding for finding in harmful if finding.role == "cause" and "signal-only" in finding.facts]
        causes = [
            finding
            for finding in harmful
            if finding.role == "cause"
            and not (finding.rule in self.next_program and finding.tagged("input-missing"))
        ]
        if not fatal or any(finding not in kills for finding in causes):
            return False
        # A traceback that lacks its end, or a crash that lacks its message, might belong to the symptom.
        named = [
            exception
            for exception in fatal
            if exception.seen.raised.exception and not exception.seen.raised.lacks_message
        ]
        # An exception about a lost peer reports the same event as the symptom, whichever came first.
        named = [exception for exception in named if not exception.shows_teardown]
        own_failures = [
            exception
            for exception in named
            if not exception.lost_something and not exception.seen.raised.beside
        ]
        if not all(_before(own_failures, finding) for finding in kills):
            return False
        return all(_before(named, finding) for finding in harmful if finding.role == "symptom")

    @property
    def own_failures(self) -> list[Unknown]:
        """The exceptions in ``fatal``, except crashes of the torch watchdog whose message is missing.

        Such a crash follows a failed collective, and another line contains the message.
        """
        return [
            exception
            for exception in self.fatal
            if not (
                exception.seen.raised.lacks_message
                and exception.seen.raised.exception.endswith("DistBackendError")
            )
        ]

    def shortly_before(self, last_sign: float | None) -> UnknownException | None:
        """If training survived an exception shortly before the run stopped, return the last such exception.

        For example, if an actor dies, its learner receives no more data, continues for a while, and then
        waits. `last_sign` is the time of the run's last sign of life.
        """
        recent = [
            exception
            for exception in self.unknown
            if last_sign is not None and exception.time is not None and exception.time >= last_sign - SHORTLY
        ]
        last = max(recent, key=lambda exception: exception.time or 0.0, default=None)
        return fold([last.seen])[0] if last is not None else None

    def records(self) -> list[UnknownException]:
        """Return the exceptions as records of the diagnosis.

        Exceptions that ended the run come first. Among them, the exception that a launcher reports as the
        first failure comes first.
        """
        fatal = fold(exception.seen for exception in self.fatal)
        firsts = {exception.seen.raised.rank for exception in self.fatal if exception.first_failure}
        fatal.sort(key=lambda record: firsts.isdisjoint(record.ranks))
        return fatal + fold(exception.seen for exception in self.unknown if not exception.fatal)


def named(exception: UnknownException) -> str:
    """Return an exception as one line of text, with its ranks, its file and line, and its step."""
    text = shown(exception.described if exception.exception else "Traceback")
    ranks = "rank" if len(exception.ranks) == 1 else "ranks"
    places = [f"{ranks} {fold_ranks(exception.ranks)}"] if exception.ranks else []
    places += [f"{exception.first.file}:{exception.first.line}"]
    places += [f"step {exception.first.step}"] if exception.first.step is not None else []
    return f"{shortened(text)} ({', '.join(places)})"


def read_exceptions(
    streams: Streams,
    matched: Sequence[RuleFinding],
    catalogue: Catalogue,
    clock: StepClock,
    tracker: ProgressTracker,
    *,
    died: bool,
    complete: bool,
    stalled: bool = False,
) -> Exceptions:
    """Return the exceptions in these streams. For each exception, determine whether it ended its program.

    `matched` contains the findings of the streams. `died` is True if the run is known to have failed, and
    `complete` if it is known to have reached its end. `stalled` is True if it is known to have stalled.
    """
    unknown: list[Unknown] = []
    seen_any = interrupted = False
    interrupt_rules, aborts = catalogue.tagged("interrupt"), catalogue.tagged("sigabrt")
    symptoms = {finding.rule for finding in matched if finding.role == "symptom"}
    interrupted_at = _interrupted_at(streams, interrupt_rules, clock)
    with_steps = {source for (source, _), stream in streams.items() if stream.last_advance is not None}
    main, beside, of_threads, of_commands, ended_in = (set[str]() for _ in range(5))
    stops = _interrupt_lines(streams, interrupt_rules)
    # The message of a crash can name its rank, although the first line of the crash does not.
    of_source: defaultdict[str, set[str]] = defaultdict(set)
    for finding in matched:
        for source, _ in finding.hits:
            of_source[source].add(finding.rule)

    def ended(seen: CountedException, key: Key) -> bool:
        if not died and _outlived(seen, tracker):
            return False
        starving = stalled and _is_beside(seen)
        return _ended(seen, key, streams, clock, with_steps, died=died, complete=complete, starving=starving)

    for key, stream in streams.items():
        table = stream.exceptions_now()
        seen_any = seen_any or bool(table.seen)
        interrupts = [
            _Interrupt(s.raised.mark.index, s.raised.mark.plain, stream.when(s.raised.line))
            for s in table.seen.values()
            if s.raised.exception == _INTERRUPT
        ]
        interrupted = interrupted or bool(interrupts)
        # A launcher reports an interrupt before the tracebacks of its ranks.
        interrupts += [
            _Interrupt(hits.first_index, hits.last_plain, stream.when(hits.first.line))
            for rule in interrupt_rules
            if (hits := stream.hits.get(rule)) is not None
        ]
        rules = {finding.rule for finding in matched if key in finding.hits}
        known = rules if key[1] is not None else of_source[key[0]]
        for seen in table.seen.values():
            helper = seen.raised.setting == "thread" and of_helper(seen.raised) and of_helper(seen.last)
            command = of_command(seen.raised) and of_command(seen.last)
            kind = beside if helper else of_commands if command else main
            (of_threads if kind is main and _is_beside(seen) else kind).update(seen.raised.rules)
            named = (seen.last.rules | seen.last.heading) & rules
            if seen.last.kind == "failure" and named:
                naming = {rule for rule in named if is_exception_line(stream.hits[rule], seen.last)}
                ended_in |= naming if ended(seen, key) else set()
        for seen in unknown_in(table, known, aborts):
            if seen.raised.heading & (rules - symptoms):  # the lines of a symptom can precede a traceback
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
                first.step = tracker.last_step
            late = any(
                interrupt.at < first.mark.index or _at_once(seen, time, interrupt) for interrupt in interrupts
            )
            # A rank that does not report the interrupt might report that it lost a peer or data because of
            # the interrupt.
            lost = first.shows_teardown or (first.lost_something and _is_below(first.line, stops))
            late = late or (lost and not interrupts and (time is None or interrupted_at is None))
            late = late or (time is not None and interrupted_at is not None and interrupted_at < time)
            quoted = first.rank is not None and first.rank == stream.summary.first
            unknown.append(Unknown(seen, key, first.mark.index, time, fatal, late, followed, quoted))
    later = {rule for key, stream in streams.items() for rule in _of_next_program(key, stream, unknown)}
    return Exceptions(
        unknown,
        seen_any,
        interrupted,
        interrupted_at,
        beside - main - of_threads - of_commands,
        of_threads - main - of_commands,
        of_commands - main,
        ended_in,
        later,
    )


def _is_beside(seen: CountedException) -> bool:
    """Return whether an exception ended only threads or helper processes that ran the user's code.

    Threads of libraries, such as a background upload or conversion, do not prepare batches.
    """
    return all(
        each.setting in ("thread", "child", "task")
        and not each.shows_teardown
        and any(not frame.library for frame in each.frames)
        for each in (seen.raised, seen.last)
    )


def _of_next_program(key: Key, stream: StreamReading, unknown: Iterable[Unknown]) -> Iterator[str]:
    """Yield the rules that matched only in output of a program that started after another program failed."""
    failed = [
        exception
        for exception in unknown
        if exception.fatal and exception.stream == key and not exception.seen.raised.beside
    ]
    programs = {
        program: exception.seen.last.mark.index
        for exception in failed
        if (program := exception.seen.last.program)
    }
    if not programs:
        return
    raised = [seen.raised for seen in stream.exceptions_now().seen.values()]
    for rule, hits in stream.hits.items():
        named = {chain.program for chain in raised if rule in chain.rules}
        earlier = [index for program, index in programs.items() if program not in named]
        if named and "" not in named and earlier and min(earlier) < hits.first_index:
            yield rule


def _ended(
    seen: CountedException,
    key: Key,
    streams: Streams,
    clock: StepClock,
    with_steps: Collection[str],
    *,
    died: bool,
    complete: bool,
    starving: bool,
) -> bool:
    """Return whether an exception ended its process or thread.

    `with_steps` contains the sources that show steps. `starving` is True if the exception ended a thread or
    helper process of a run that stalled.
    """
    stream, last = streams[key], seen.last
    of_tracker = last.setting == "thread" and of_helper(last)  # training does not need trackers
    enough = SURVIVED_BUT_DIED if died else 1 if of_tracker else SURVIVED
    enough = BUFFERED_STEPS + 1 if starving and not of_tracker else enough
    if steps_after(stream, last.line, last.mark.advances, clock) >= enough:
        return False
    if stream.plain - last.mark.plain >= SURVIVED_LINES and not starving:
        return False
    if continued_to_serve(answers_after(key, last.mark.answers, streams), died=died):
        return False
    # Lines after a warning do not show that the program continued, because some collectors log all of stderr
    # as warnings.
    if last.warned and not died and key[0] not in with_steps and _continued(stream, last.mark.index):
        return False
    if not died and stream.work_after(last) > SNIPPET_LINES:
        return False
    if last.beside and last.shows_teardown and (of_tracker or stream.plain - last.mark.plain > AT_ONCE):
        return False
    return not (complete and (last.setting != "main" or last.native))


def _outlived(seen: CountedException, tracker: ProgressTracker) -> bool:
    """Return whether training reached its total steps and survived an earlier occurrence of the exception.

    A report such as "training finished" after the exception proves nothing, because scripts can also print
    such a report.
    """
    survived = seen.last.mark.advances - seen.raised.mark.advances >= SURVIVED
    return survived and tracker.reached_total(seen.last.line)


def _continued(stream: StreamReading, index: int) -> bool:
    """Return whether enough informational messages follow a line to show that the program continued."""
    entries = stream.templates.entries.values()
    later = (entry for entry in entries if entry.last_index > index)
    return sum(states_info(entry.last.text) for entry in later) > SNIPPET_LINES


def is_exception_line(hits: RuleHits, raised: ExceptionChain) -> bool:
    """Return whether a rule's last match is on the exception itself, not between its stack frames."""
    line = hits.last.line
    return line.number == raised.line.number or bool(raised.root and raised.root in line.text)


def _at_once(seen: CountedException, time: float | None, stop: _Interrupt) -> bool:
    """Return whether an exception about a lost process or thread is only a consequence of Control+C.

    The exception's lines can come before the interrupt's lines. However, a thread that fetches batches can
    also lose its peer long before a user stops the waiting run. The number of lines or seconds between the
    exception and the interrupt distinguishes the two cases. For a thread that pins batches, the time is not
    evidence, because the thread's workers end first, and the thread detects their end late.
    """
    first = seen.raised
    beside = first.beside or of_helper(first)
    near = first.mark.index < stop.at and stop.plain - first.mark.plain <= AT_ONCE
    if not (beside and first.shows_teardown and near):
        return False
    slow = pins_batches(first) and pins_batches(seen.last)
    return slow or time is None or stop.time is None or stop.time - time <= AT_ONCE_SECONDS


class _Interrupt(NamedTuple):
    """The position of an interrupt in a stream."""

    at: int
    plain: int  #: number of lines before the interrupt, not counting tracebacks
    time: float | None


_INTERRUPT = "KeyboardInterrupt"


def _interrupt_lines(streams: Streams, rules: Collection[str]) -> list[Line]:
    """Return the lines, from any rank, that show that a user stopped the run."""
    tables = (stream.exceptions_now().seen.values() for stream in streams.values())
    raised = [seen.raised.line for table in tables for seen in table if seen.raised.exception == _INTERRUPT]
    matched = [
        stream.hits[rule].first.line for stream in streams.values() for rule in rules if rule in stream.hits
    ]
    return raised + matched


def _is_below(line: Line, stops: Iterable[Line]) -> bool:
    """Return whether a line comes after one of the lines `stops` in the same file."""
    return any(stop.source == line.source and stop.number < line.number for stop in stops)


def _interrupted_at(streams: Streams, rules: Collection[str], clock: StepClock) -> float | None:
    """Return the time of the first interrupt, or ``None`` if it is unknown or if training continued."""
    matched = (
        (stream, stream.hits[rule]) for stream in streams.values() for rule in rules if rule in stream.hits
    )
    times = [time for stream, hits in matched if (time := stream.when(hits.first.line)) is not None]
    return min(times) if times and clock.after(min(times)) < SURVIVED else None


def _explains(why: Unknown, echo: Unknown) -> bool:
    """Return whether the failure `why` explains the exception `echo`, which reports a lost peer or helper."""
    if why.stream == echo.stream:
        later = why.of_thread and not echo.seen.raised.beside and why.index > echo.index
        return (echo.shows_teardown or (echo.lost_something and why.seen.raised.beside)) and not later
    return echo.shows_teardown


def _before(fatal: Iterable[Unknown], symptom: RuleFinding) -> bool:
    """Return whether one of the exceptions came before a symptom, as far as the logs show their order."""
    for exception in fatal:
        if symptom.rule in exception.seen.raised.heading:
            return True
        same_stream = [place for place in symptom.occurrences if place.stream == exception.stream]
        if same_stream:
            # The launcher ended the other ranks after this failure, and printed its summary last.
            if exception.first_failure or exception.index < min(place.position for place in same_stream):
                return True
            continue
        times = [place.time for place in symptom.occurrences if place.time is not None]
        if (
            exception.time is None
            or len(times) < len(symptom.occurrences)
            or exception.time <= min(times, default=0.0)
        ):
            return True
    return False
