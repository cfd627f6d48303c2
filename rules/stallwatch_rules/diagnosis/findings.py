"""A rule's matches in all streams put together, and what they mean for this run.

Only facts that do not depend on how ranks were interleaved go in: the order within a stream, and times that
are a line's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.afterwards import answers_after, steps_after
from stallwatch_rules.diagnosis.causes import Candidate, Occurrence, Stream
from stallwatch_rules.diagnosis.excerpts import place_in
from stallwatch_rules.diagnosis.helpers import told_in_passing
from stallwatch_rules.judgements.facts import Judgement, RunFacts, Trace
from stallwatch_rules.judgements.loss import finite_losses
from stallwatch_rules.judgements.loss_scale import CALIBRATION, ScaleFacts, judge_overflow
from stallwatch_rules.judgements.recovery import judge_recovery, judge_service
from stallwatch_rules.judgements.trace_cache import judge_trace_cache
from stallwatch_rules.messages import Text, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import RulePage, Tag
from stallwatch_rules.progress.timeline import StepClock, between, leading
from stallwatch_rules.records import Finding, Harm, Line, Match, Place, Role
from stallwatch_rules.stream import SOURCE, RuleHits, StreamReading
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, number
from stallwatch_rules.text.reported import earliest, latest, place, shown

TRACE_CACHE = "zero3-trace-cache-invalidated"
OVERFLOW = "fp16-overflow-every-step"
NOT_A_NUMBER = ("loss-nan", "grad-norm-nan")
FORGOTTEN = 20  #: good steps, and good losses printed, after which a single NaN is history
OFTEN = 0.05  #: matches a step above which a failure that training survives still does harm
MAX_EVIDENCE = 4

Streams = Mapping[Stream, StreamReading]

_NUMBER = lazy(NUMBER)
_HANGS = lazy(r"timeout|timed-out|heartbeat|hang|stuck|sigabrt")
_TIMED_OUT = lazy(r"[Tt]imed out|[Tt]ime-?out")


class Found(msgspec.Struct):
    """One rule in the run, with its harm."""

    page: RulePage
    hits: dict[Stream, RuleHits]  #: empty for what was concluded from the run
    occurrences: tuple[Occurrence, ...]
    followed: int  #: steps after the last match, in the stream where the fewest followed
    harm: Harm
    role: Role
    note: Text = ""
    judged: bool = False  #: the harm was concluded from the run's progress
    explains: list[str] = []
    count: int = 0
    facts: set[str] = set()  #: what makes it less sure; see ``confidence``
    proof: list[str] = []  #: lines that say for certain what others leave open
    where: Line | None = None  #: for what was concluded: the line it is about
    step: int | None = None

    def tagged(self, tag: Tag) -> bool:
        """Whether its rule has this tag."""
        return tag in self.page.tags

    @property
    def rule(self) -> str:
        """The rule's id."""
        return self.page.id

    @property
    def is_failure(self) -> bool:
        """Whether it ended the run, and is more than a launcher's word for that."""
        return self.harm == "fatal" and self.role in ("cause", "symptom")

    @property
    def first(self) -> Match | None:
        """The earliest match."""
        matches = {id(hits.first.line): hits.first for hits in self.hits.values()}
        return matches[id(earliest(m.line for m in matches.values()))] if matches else None

    @property
    def last(self) -> Match | None:
        """The latest match."""
        matches = {id(hits.last.line): hits.last for hits in self.hits.values()}
        return matches[id(latest(m.line for m in matches.values()))] if matches else None

    @property
    def shown_match(self) -> Match | None:
        """The match to point to: the first, but the last of what counts by the steps that follow."""
        return self.last if self.judged and self.harm == "fatal" else self.first

    def set(self, judgement: Judgement) -> None:
        """Take a judgement of the harm."""
        self.harm, self.note, self.judged = judgement.harm, judgement.note, True
        if self.harm == "fatal" and self.role == "notice":
            self.role = "cause"

    def step_of(self, match: Match, last_step: int | None) -> int | None:
        """The step of a match."""
        return last_step if match.step is None and self.harm == "fatal" else match.step

    def candidate(self) -> Candidate:
        """What the causal order needs."""
        return Candidate(
            self.rule,
            self.role,
            self.harm,
            tuple(dict.fromkeys([*self.page.explains, *self.explains])),
            self.occurrences,
            max((len(_LITERAL.sub("", pattern)) for pattern in self.page.patterns), default=0),
            self.page.status == "incubating",
            self.judged and self.harm in ("fatal", "degrading"),
            frozenset(self.facts),
        )

    def evidence(self) -> list[str]:
        """The matched lines: the one to point to, then different ones, redacted."""
        match = self.shown_match
        if match is None:
            lines = [self.where.text, *self.proof] if self.where is not None else []
            return [shown(text) for text in lines if text]
        others = [t for _, hits in sorted(self.hits.items(), key=_stream_order) for t in hits.exemplars]
        texts = dict.fromkeys([match.line.text, *self.proof, *others])
        return [shown(text, self._find) for text in texts][:MAX_EVIDENCE]

    def _find(self, text: str) -> int:
        return place_in(self.page, text)

    def record(self, title: Text, last_step: int | None) -> Finding:
        """The finding of the diagnosis; what ended the run came at its last step, unless told otherwise."""
        first, last = self.first, self.last
        if first is None or last is None:
            nowhere = Place(None, "", 0, None, self.step, self.note)
            about = place(self.where, self.step) if self.where is not None else nowhere
            if self.proof and not about.text:
                about = msgspec.structs.replace(about, text=shown(self.proof[0]))
            of = sorted({place.stream[1] for place in self.occurrences if place.stream[1] is not None})
            count = max(1, self.count)
            return Finding(self.rule, title, self.role, self.harm, count, of, about, about, self.note)
        ranks = {stream[1] for stream in self.hits}
        return Finding(
            self.rule,
            title,
            self.role,
            self.harm,
            self.count,
            sorted(rank for rank in ranks if rank is not None),
            place(first.line, self.step_of(first, last_step), self._find),
            place(last.line, self.step_of(last, last_step), self._find),
            self.note,
        )


_LITERAL = lazy(r"\(\?P<\w+>|\\[dwsSDWb]|\[[^\]]*\]|[\\^$.|?*+(){}]")


def _stream_order(item: tuple[Stream, RuleHits]) -> tuple[bool, int, str]:
    source, rank = item[0]
    return rank is None, rank or 0, source


def _in_context(rule: str, key: Stream, streams: Streams) -> bool:
    """Whether what the rule requires was found, too.

    A line that names no rank (NCCL's own, a frame that lost its prefix) may be of any rank of its source.
    """
    source, rank = key
    return any(
        rule in stream.contexts and other == source and (of == rank or rank is None or of is None)
        for (other, of), stream in streams.items()
    )


def collect(
    streams: Streams, catalogue: Catalogue, conditional: Collection[str], clock: StepClock
) -> list[Found]:
    """The rules that fired, in the catalogue's order, each with the harm that its page says."""
    by_rule: dict[str, dict[Stream, RuleHits]] = {}
    for key, stream in streams.items():
        for rule, hits in stream.hits.items():
            if rule not in conditional or _in_context(rule, key, streams):
                by_rule.setdefault(rule, {})[key] = hits
    found = []
    for rule, page in catalogue.pages.items():
        if rule not in by_rule:
            continue
        hits_of = by_rule[rule]
        occurrences, followed = [], []
        for key, hits in hits_of.items():
            stream = streams[key]
            hits_of[key] = _with_steps(hits, stream, clock)
            occurrences.append(Occurrence(key, hits.first_index, stream.when(hits.first.line), hits.own_step))
            followed.append(steps_after(stream, hits.last.line, hits.mark, clock))
        count = sum(hits.count for hits in hits_of.values())
        found.append(
            Found(
                page,
                hits_of,
                tuple(occurrences),
                min(followed),
                page.harm,
                page.role,
                explains=[],
                count=count,
            )
        )
    return found


def _with_steps(hits: RuleHits, stream: StreamReading, clock: StepClock) -> RuleHits:
    """The hits with the steps at which they came, whatever other streams were read before."""

    def placed(match: Match, own_step: int | None) -> Match:
        step = own_step if own_step is not None else clock.at(stream.when(match.line))
        step = step if step is not None else clock.at_restart(match.line)
        # A rank knows its step better than a log that tells of every tenth; one that was resumed counts anew.
        if match.line.source == SOURCE and match.step is not None:
            step = max(match.step, step or 0)
        return msgspec.structs.replace(match, step=step)

    first, last = placed(hits.first, hits.own_step), placed(hits.last, hits.last_own_step)
    return replace(hits, first=first, last=last)


def judge_recoveries(found: Iterable[Found], streams: Streams, facts: RunFacts) -> None:
    """Failures that a line names, but that training survived."""
    for one in found:
        if one.harm not in ("fatal", "degrading") or one.role == "notice":
            continue
        often = facts.advances > 0 and one.count >= 3 and one.count / facts.advances > OFTEN
        # A gradient that is not finite is how fp16 finds its scale; a loss is never.
        often = often or (one.rule == NOT_A_NUMBER[0] and _remembered(one, streams))
        often = often or (one.rule == NOT_A_NUMBER[1] and _never_a_number(one, streams))
        if one.rule == NOT_A_NUMBER[1] and _calibrating(one):
            one.harm, one.note = "harmless", message("diagnosis.overflow-start", count=one.count)
            continue
        if one.tagged("exit-status") and one.followed:  # of whatever ended before the training, or beside it
            one.harm, one.note = "harmless", message("diagnosis.recovered", steps=one.followed)
            continue
        if told_in_passing(one):
            one.harm, one.note = "harmless", message("diagnosis.maybe-caught")
            continue
        if one.rule == NOT_A_NUMBER[0] and _no_number_since(one, streams):
            continue  # steps that follow mend no weights
        judgement = judge_recovery(one.followed, often, facts)
        judgement = judgement or judge_service(_answered(one, streams), facts)
        if judgement is not None:
            one.harm, one.note = judgement.harm, judgement.note


def _answered(one: Found, streams: Streams) -> int:
    """Answers of an inference server that followed the last match, in the stream where the fewest did."""
    return min((answers_after(key, hits.answers, streams) for key, hits in one.hits.items()), default=0)


def _remembered(one: Found, streams: Streams) -> bool:
    """Whether a loss that was not finite is news still, in steps or in the losses that were printed.

    Many steps may lie between two printed losses: one good value after the bad one is little comfort.
    """
    if one.followed < FORGOTTEN:
        return True
    for key, hits in one.hits.items():
        stream = streams[key]
        curve = stream.curves.main
        losses = [point.mark for point in finite_losses(curve.points)] if curve is not None else []
        if curve is None or not losses:
            continue
        if sum(mark > hits.mark for mark in losses) < FORGOTTEN:
            return True
        whole = not stream.templates.partial  # else the matches are counted, and the losses are not
        if whole and hits.count >= 3 and hits.count / curve.seen > OFTEN:
            return True
    return False


def _no_number_since(one: Found, streams: Streams) -> bool:
    """Whether no finite loss was printed after those that were not, in any stream that printed them."""
    for key, hits in one.hits.items():
        curve = streams[key].curves.main
        if curve is None or any(point.mark > hits.mark for point in finite_losses(curve.points)):
            return False
    return True


def _never_a_number(one: Found, streams: Streams) -> bool:
    """Whether each gradient norm that a run printed was NaN: steps that came after did not mend it."""
    for key in one.hits:
        curve = streams[key].curves.main
        points = curve.points if curve is not None else []
        norms = [point.grad_norm for point in points if point.grad_norm is not None]
        if len(norms) >= 2 and all(math.isnan(norm) for norm in norms):
            return True
    return False


def _calibrating(one: Found) -> bool:
    """Whether infinite (not NaN) gradients came in a run's first steps only: fp16 finds its scale."""
    for hits in one.hits.values():
        texts = " ".join(hits.exemplars).lower()
        step = hits.last_own_step
        if step is None or step > CALIBRATION or "nan" in texts or "inf" not in texts:
            return False
    return bool(one.hits)


def ends_in_timeout(found: Iterable[Found]) -> bool:
    """Whether a symptom of a standstill ended the run: a collective's timeout, a watchdog's abort."""
    for one in found:
        if one.harm == "fatal" and one.role == "symptom":
            first = one.first
            if _HANGS.search(one.rule) or (first is not None and _TIMED_OUT.search(first.line.text)):
                return True
    return False


def judge_by_progress(found: Iterable[Found], streams: Streams, facts: RunFacts) -> None:
    """The rules whose harm depends on how the run went on."""
    for one in found:
        if one.page.harm != "by-progress" or one.tagged("often-handled") or not one.hits:
            continue
        trace = trace_of(one, streams)
        if one.rule == TRACE_CACHE:
            one.set(judge_trace_cache(trace, facts))
        elif one.rule == OVERFLOW:
            one.set(judge_overflow(trace, _scale(streams, one), facts))
        elif one.followed >= 3 or facts.complete:
            one.set(Judgement("harmless", message("diagnosis.advancing", steps=one.followed)))


def trace_of(one: Found, streams: Streams) -> Trace:
    """How often the rule fired between the steps, from the stream where it fired most.

    Where that stream shows no steps itself, the steps of another are taken, if times tell how they lie.
    """
    key = max(one.hits, key=lambda k: (one.hits[k].count, k[1] is None, -(k[1] or 0), k[0]))
    count = one.hits[key].count
    stream = streams[key]
    own = stream.timelines.main
    lead = leading({other: s.timelines for other, s in streams.items()})
    times = stream.timelines.hit_times.get(one.rule, [])
    if (own is None or len(own.intervals) < 2) and lead is not None and lead is not own:
        counts = between(lead.intervals, times) if times and stream.timed else None
        if counts is not None:
            return Trace(list(zip(lead.intervals, counts, strict=False)), counts[-1], count)
    if own is None:
        return Trace([], 0 if lead is not None else count, count)
    matches = [(interval, interval.hits.get(one.rule, 0)) for interval in own.intervals]
    return Trace(matches, own.open_hits.get(one.rule, 0), count)


def _scale(streams: Streams, overflow: Found) -> ScaleFacts:
    lowest = [s.lowest_scale for s in streams.values() if s.lowest_scale is not None]
    for hits in overflow.hits.values():  # scalers whose words are no sample: Apex, DeepSpeed without ZeRO
        reduced = _NUMBER.match(hits.last.captures.get("reduced", ""))
        if reduced:
            lowest.append(number(reduced[0]))
    skipped = max((s.skipped for s in streams.values() if s.skipped is not None), default=None)
    return ScaleFacts(
        min(lowest, default=None),
        skipped[0] if skipped else None,
        skipped[1] if skipped else None,
        min(
            (good for key, hits in overflow.hits.items() for good in _until_nan(streams[key], hits)),
            default=None,
        ),
    )


def _until_nan(stream: StreamReading, hits: RuleHits) -> Iterator[int]:
    """The steps known to be good after the last match, where such came to be followed by NaN for good."""
    curve = stream.curves.main
    after = [point for point in curve.points if point.mark > hits.mark] if curve is not None else []
    if not after or not after[-1].is_nan:
        return
    good = [point.mark for point in itertools.takewhile(lambda point: not point.is_nan, after)]
    yield good[-1] - hits.mark if good else 0
