"""For each rule, combine the matches from all streams into one finding.

The combination uses only facts that do not depend on the interleaving of ranks: the order within a stream,
and the timestamps in the lines themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from stallwatch_rules.judgements.facts import RECOVERED_BUT_DIED, Judgement
from stallwatch_rules.messages import Text
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage, Tag
from stallwatch_rules.pages.patterns import cached_re2
from stallwatch_rules.progress.timeline import CLOCK_STEP, StepClock, Timeline
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Finding, Harm, Line, Match, Place, Role
from stallwatch_rules.stream import SOURCE, Key, RuleHits, StreamReading
from stallwatch_rules.text.display import earliest, latest, place, shown
from stallwatch_rules.text.lazy import lazy

TRACE_CACHE = "zero3-trace-cache-invalidated"
OVERFLOW: Tag = "fp16-overflow"
MAX_EVIDENCE = 4
EVENT_LINES = 30  #: maximum number of lines of one stream that report one event, such as a crash

Streams = Mapping[Key, StreamReading]


class Occurrence(msgspec.Struct, frozen=True):
    """The first match of a rule in one stream."""

    stream: Key
    position: int  #: index of the matched line in the stream
    time: float | None = None
    step: int | None = None
    trained: bool = False  #: True if the run certainly completed a step before the match


class RuleFinding(msgspec.Struct, frozen=True):
    """A rule that matched lines of a run or was inferred from the run, with its impact on the run."""

    page: RulePage
    hits: Mapping[Key, RuleHits]  #: matches by stream, or an empty mapping if the finding was inferred
    occurrences: tuple[Occurrence, ...]
    followed: int  #: number of steps after the last match, in the stream with the fewest such steps
    harm: Harm
    role: Role
    note: Text = ""
    judged: bool = False  #: True if the harm was inferred from the run's progress
    #: Rules that the finding explains in this run, in addition to the rules that its page lists.
    explains: tuple[str, ...] = ()
    count: int = 0
    facts: frozenset[str] = frozenset()  #: facts that reduce the confidence; see ``confidence``
    proof: tuple[str, ...] = ()  #: lines that prove the cause if the matched lines do not
    where: Line | None = None  #: the line that the report points to, for an inferred finding
    step: int | None = None
    once: bool = False  #: True if the run took no step between the first and the last match

    def tagged(self, tag: Tag) -> bool:
        """Return whether the finding's rule has this tag."""
        return tag in self.page.tags

    @property
    def rule(self) -> str:
        """The ID of the finding's rule."""
        return self.page.id

    @property
    def is_failure(self) -> bool:
        """True if the finding ended the run and is not only a launcher's report of the end."""
        return self.harm == "fatal" and self.role in ("cause", "symptom")

    @property
    def shows_teardown(self) -> bool:
        """True if all matches are in output that processes printed during teardown."""
        return bool(self.hits) and all(hits.teardown == hits.count for hits in self.hits.values())

    @property
    def handled(self) -> bool:
        """True if all matches are in exceptions that the program reports as handled."""
        return bool(self.hits) and all(hits.handled == hits.count for hits in self.hits.values())

    @property
    def first(self) -> Match | None:
        """The earliest match of the finding, or ``None`` for an inferred finding."""
        return _earliest([hits.first for hits in self.hits.values()])

    @property
    def last(self) -> Match | None:
        """The latest match of the finding, or ``None`` for an inferred finding."""
        matches = {id(hits.last.line): hits.last for hits in self.hits.values()}
        return matches[id(latest(m.line for m in matches.values()))] if matches else None

    @property
    def shown_match(self) -> Match | None:
        """The match that a report shows, which is usually the first match.

        If training survived the first match, the log can contain several starts that ended in the same way.
        In this case, the last match ended the run and is shown. The last match is also shown if the harm was
        inferred from later steps. For a loss that stays NaN, the first NaN after the last finite loss is
        shown instead.
        """
        if self.harm != "fatal" or not (self.judged or self._survived):
            return self.first
        return self._since if self.tagged("nan-loss") else self.last

    @property
    def _since(self) -> Match | None:
        """The first match after the last finite loss, in the earliest of the streams that still match.

        A stream still matches if its last match is not earlier than the first match after the last finite
        loss in the stream that contains the latest match.
        """
        last = self.last
        since = next((hits.since or last for hits in self.hits.values() if hits.last is last), last)
        begun = [
            hits.since
            for hits in self.hits.values()
            if since is not None and hits.since is not None and not _is_before(hits.last, since)
        ]
        return _earliest([match for match in begun if since and _is_before(match, since)]) or since

    @property
    def _survived(self) -> bool:
        """True if training continued between the first match and a later match."""
        steps = ((hits.own_step, hits.last_own_step) for hits in self.hits.values())
        return any(a is not None and b is not None and abs(b - a) >= RECOVERED_BUT_DIED for a, b in steps)

    def with_harm(self, harm: Harm, note: Text) -> RuleFinding:
        """Return the finding with this harm and with a note that explains the harm."""
        return replace(self, harm=harm, note=note)

    def with_judgement(self, judgement: Judgement, *, seen: bool = False) -> RuleFinding:
        """Return the finding with an assessed harm and its note. `seen` is True for an observed harm."""
        role = "cause" if judgement.harm == "fatal" and self.role == "notice" else self.role
        return replace(self, harm=judgement.harm, note=judgement.note, judged=not seen, role=role)

    def with_facts(self, *facts: str) -> RuleFinding:
        """Return the finding with these facts added."""
        return replace(self, facts=self.facts.union(facts))

    def step_of(self, match: Match, last_step: int | None) -> int | None:
        """Return the step of a match. A fatal match that has no step gets the last step of the run."""
        return last_step if match.step is None and self.harm == "fatal" else match.step

    def had_trained(self, tracker: ProgressTracker) -> bool:
        """Return whether the run had certainly completed a step before one of the matches.

        If the log reports the end of the training before a match, the match is from a new start.
        """
        if any(tracker.states_end_before(hits.first.line) for hits in self.hits.values()):
            return False
        return any(at.trained for at in self.occurrences)

    @property
    def all_explained(self) -> tuple[str, ...]:
        """The rules that this finding explains, according to its page or the facts of this run."""
        return tuple(dict.fromkeys([*self.page.explains, *self.explains]))

    @property
    def specificity(self) -> int:
        """The length of the longest literal text that a pattern of the rule requires."""
        return max((len(_LITERAL.sub("", pattern)) for pattern in self.page.patterns), default=0)

    def texts(self) -> Iterator[str]:
        """Yield the stored lines of the matches: the examples, the first line, and the last line."""
        for hits in self.hits.values():
            yield from hits.exemplars
            yield hits.first.line.text
            yield hits.last.line.text

    def evidence(self) -> list[str]:
        """Return the matched lines with secrets redacted. The line that the report points to comes first."""
        match = self.shown_match
        if match is None:
            lines = [self.where.text, *self.proof] if self.where is not None else []
            return [shown(text) for text in lines if text]
        others = [t for _, hits in sorted(self.hits.items(), key=_stream_order) for t in hits.exemplars]
        texts = dict.fromkeys([match.line.text, *self.proof, *others])
        return [shown(text, self._find) for text in texts][:MAX_EVIDENCE]

    def _find(self, text: str) -> int:
        """Return the position of the match in a long line, so that a report can show the text around it."""
        found = (cached_re2(pattern, encoded=False).search(text) for pattern in self.page.patterns)
        return min((match.start() for match in found if match is not None), default=0)

    def record(self, title: Text, last_step: int | None, alike: Collection[str] = ()) -> Finding:
        """Return the finding as a record of the diagnosis.

        A match that has no step gets the last step of the run if the finding is fatal. `alike` contains the
        sources that represent unread sources with the same lines.
        """
        first, last = self.first, self.last
        streams = {*self.hits} or {at.stream for at in self.occurrences}
        if first is not None and last is not None:
            begin = place(first.line, self.step_of(first, last_step), self._find)
            end = place(last.line, self.step_of(last, last_step), self._find)
        else:
            nowhere = Place(None, "", 0, None, self.step, self.note)
            begin = place(self.where, self.step) if self.where is not None else nowhere
            if self.proof and not begin.text:
                begin = replace(begin, text=shown(self.proof[0]))
            end = begin
        return Finding(
            self.rule,
            title,
            self.role,
            self.harm,
            max(1, self.count),
            sorted({rank for _, rank in streams if rank is not None}),
            begin,
            end,
            self.note,
            any(source in alike for source, _ in self.hits),
        )


def _earliest(matches: Iterable[Match]) -> Match | None:
    """Return the earliest match, or ``None`` if there is no match."""
    by_line = {id(match.line): match for match in matches}
    return by_line[id(earliest(match.line for match in by_line.values()))] if by_line else None


def _is_before(match: Match, other: Match) -> bool:
    """Return whether a match is certainly earlier than another match of its rule."""
    if match.step is not None and other.step is not None:
        return match.step < other.step
    times = match.line.time, other.line.time
    return times[0] is not None and times[1] is not None and times[0] < times[1]


_LITERAL = lazy(r"\(\?P<\w+>|\\[dwsSDWb]|\[[^\]]*\]|[\\^$.|?*+(){}]")


def _stream_order(item: tuple[Key, RuleHits]) -> tuple[bool, int, str]:
    source, rank = item[0]
    return rank is None, rank or 0, source


def _in_context(rule: str, key: Key, streams: Streams) -> bool:
    """Return whether the words that a rule requires occur in a stream of the same source and rank.

    A line that names no rank (such as a line from NCCL, or a stack frame without its prefix) can belong to
    any rank of its source.
    """
    source, rank = key
    return any(
        rule in stream.contexts and other == source and (of == rank or rank is None or of is None)
        for (other, of), stream in streams.items()
    )


def collect(
    streams: Streams, catalogue: Catalogue, conditional: Collection[str], clock: StepClock
) -> list[RuleFinding]:
    """Return a finding for each rule that matched, in the order of the catalogue.

    The harm of each finding is the value in the rule's page. Assessors can change the harm.
    """
    by_rule: dict[str, dict[Key, RuleHits]] = {}
    for key, stream in streams.items():
        for rule, hits in stream.hits.items():
            if rule not in conditional or _in_context(rule, key, streams):
                by_rule.setdefault(rule, {})[key] = hits
    found = []
    for rule, page in catalogue.pages.items():
        if rule not in by_rule:
            continue
        hits_of = by_rule[rule]
        occurrences, followed, once = [], [], True
        for key, hits in hits_of.items():
            stream = streams[key]
            hits_of[key] = _with_steps(hits, stream, clock)
            line, step = hits.first.line, hits.own_step
            trained = bool(step) or clock.had_begun(line)
            occurrences.append(Occurrence(key, hits.first_index, stream.when(line), step, trained))
            followed.append(steps_after(stream, hits.last.line, hits.mark, clock))
            once = once and _is_one_event(stream, hits, clock)
        count = sum(hits.count for hits in hits_of.values())
        places = tuple(occurrences)
        after = min(followed)
        found.append(RuleFinding(page, hits_of, places, after, page.harm, page.role, count=count, once=once))
    return found


def _is_one_event(stream: StreamReading, hits: RuleHits, clock: StepClock) -> bool:
    """Return whether the run took no step between the first and the last match in a stream."""
    if hits.count > EVENT_LINES or hits.own_step != hits.last_own_step:
        return False
    first, last = (
        max(clock.restarted(line), clock.after(stream.when(line) or stream.pause_after(line)))
        for line in (hits.first.line, hits.last.line)
    )
    return first == last


def concluded(page: RulePage, judgement: Judgement, *, seen: bool = False, **known: Any) -> RuleFinding:
    """Return a finding that has no matched lines but has an assessed harm and the fields in `known`.

    `seen` is True if the finding was observed and not inferred.
    """
    found = RuleFinding(page, {}, (), 0, page.harm, page.role, count=1, **known)
    return found.with_judgement(judgement, seen=seen)


def steps_after(stream: StreamReading, line: Line, advances: int, clock: StepClock) -> int:
    """Return the number of steps that the run took after a line of a stream.

    `advances` is the number of steps that the stream shows before the line. The order of lines in one
    stream is certain, but their times are not, because the loggers of one process can print local time,
    UTC, or no date. Therefore, if the line's time is earlier than the time of a step before the line, only
    the order counts. After a restart of all workers, the run's steps count for every rank. If a failed
    program draws its progress bar once more, the steps in the bar do not count, because the program completed
    them before its exception.
    """
    steps = _steps_printed_after(stream, line, advances, clock)
    return 0 if steps in stream.redraws.values() else steps


def _steps_printed_after(stream: StreamReading, line: Line, advances: int, clock: StepClock) -> int:
    """Return the number of steps that the log shows after a line of a stream. See ``steps_after``."""
    steps = max(0, stream.timelines.advances - advances, clock.restarted(line), clock.all_below(line))
    time = stream.when(line)
    if time is None:  # as in a traceback, but the stream can show a time by which the line was printed
        return max(steps, clock.after(stream.pause_after(line)))
    done = _time_of_step(stream.timelines.main, advances)
    if done is not None and time < done - CLOCK_STEP:
        return steps
    below = clock.below(line, time)
    return max(steps, clock.after(time) if below is None else below)


def _time_of_step(timeline: Timeline | None, advances: int) -> float | None:
    """Return the latest known time of the first `advances` steps, or ``None`` if no time is known."""
    found, done = None, 0
    for interval in timeline.intervals if timeline is not None else ():
        done += interval.span
        if done > advances:
            break
        found = interval.time if interval.time is not None else found
    return found


def answers_after(key: Key, answers: int, streams: Streams) -> int:
    """Return the number of requests that a server answered after its first `answers` answers.

    Return 0 for a trainer's log, because its server can continue to answer after the trainer has died.
    """
    if any(name == key[0] and stream.last_advance is not None for (name, _), stream in streams.items()):
        return 0
    return streams[key].answers - answers


def _with_steps(hits: RuleHits, stream: StreamReading, clock: StepClock) -> RuleHits:
    """Return the matches of a rule with steps that do not depend on the order in which ranks were read."""

    def placed(match: Match, own_step: int | None) -> Match:
        step = own_step if own_step is not None else clock.at(stream.when(match.line))
        step = step if step is not None else clock.at_restart(match.line)
        # A rank's own step is more exact than the step of a log that shows only every tenth step. After the
        # run resumes, the rank counts from 0 again.
        if match.line.source == SOURCE and match.step is not None:
            step = max(match.step, step or 0)
        return replace(match, step=step)

    first, last = placed(hits.first, hits.own_step), placed(hits.last, hits.last_own_step)
    since = placed(hits.since, hits.since_own_step) if hits.since is not None else None
    return replace(hits, first=first, last=last, since=since)


def came_before(finding: RuleFinding, other: RuleFinding) -> bool:
    """Return whether times or positions show that `finding` came before `other`."""
    times = [[place.time for place in found.occurrences] for found in (finding, other)]
    if all(times) and all(time is not None for group in times for time in group):
        earliest = [min(time for time in group if time is not None) for group in times]
        return earliest[0] < earliest[1]
    orders = [
        place.position < later.position
        for place in finding.occurrences
        for later in other.occurrences
        if place.stream == later.stream
    ]
    return bool(orders) and all(orders)
