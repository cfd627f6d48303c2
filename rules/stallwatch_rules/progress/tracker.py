"""Track the steps of a run and their durations from the samples of all its ranks.

Each rank in each source is followed separately, and the results are combined when they are queried.
Therefore, the order of the lines from different ranks does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, NamedTuple

from stallwatch_rules.progress.counter import Counter
from stallwatch_rules.progress.phases import ANNOUNCES, announces_end, is_unnamed_completion, phase_sign
from stallwatch_rules.records import EVALUATION, Line, Phase, Progress, Sample
from stallwatch_rules.samples.series import COARSE, MAX_TEXT, WEAK
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import skeleton

_MAX_COUNTERS = 65536
_MAX_PASSED = 64
_SUREST = ("total", "words", "likely", "left")
#: The values (attempt, step) and (attempt, round) of a run whose log shows no steps.
NOWHERE = ((1, -1), (1, -1))


class Finish(NamedTuple):
    """The evidence that training is complete."""

    #: Kind of evidence. "total": a counter reached its total. "words": the training reported its end.
    #: "likely": a line resembles lines that programs print at their end. "left": a process exited
    #: successfully.
    how: Literal["total", "words", "likely", "left"]
    source: str = ""
    number: int = 0  #: line number of the evidence
    text: str = ""  #: truncated text of the line


_ATTEMPT_FOLDER = lazy(r"(?:^|[/\\])attempt_(\d{1,4})[/\\]")  # torchrun's log folders


class _Stream:
    """The progress of one rank, as shown by one source of lines."""

    def __init__(self, line: Line) -> None:
        found = _ATTEMPT_FOLDER.search(line.source)
        self.rank = line.rank
        self.source = line.source
        self.attempt = int(found[1]) + 1 if found else 1
        self.counters: dict[str, Counter] = {}
        self.main_bar: Counter | None = None
        self.awaited = False  # True if the next bar belongs to an evaluation that was announced
        self.phase: Phase = "init"
        self.phase_time: float | None = None
        self.end: Finish | None = None  # evidence that the training is complete

        # Number of rounds at the time when ``end`` was set. Other counters can report the last round later,
        # so the number is stored.
        self.rounds = 0
        self.left = False  # True if a process of the stream exited successfully
        self.seeming_ends: set[str] = set()  # lines after the last step that resemble a final message

        # Lines that resembled a final message but were followed by steps.
        self.passed: set[str] = set()
        self.last_loss: float | None = None
        self.loss_time: float | None = None

    def last(self, *, rounds: bool) -> int | None:
        """Return the highest step of the stream, or its highest round if `rounds` is true."""
        return max((c.last for c in self._counting(rounds) if c.last is not None), default=None)

    def furthest(self, *, rounds: bool) -> tuple[int, int]:
        """Return two values: the number of the latest attempt, and the highest step in that attempt.

        If `rounds` is true, the second value is the highest round (such as an epoch) instead of the highest
        step.
        """
        reached = ((c.attempt, c.last) for c in self._counting(rounds) if c.last is not None)
        return max(reached, default=(0, -1))

    def _counting(self, rounds: bool) -> Iterator[Counter]:
        return (c for c in self.counters.values() if _counts(c) and c.rounds == rounds)

    def seems_over(self, line: Line) -> None:
        """Record a line that resembles the final message of a program."""
        key = skeleton(line.text)
        if key in self.passed or (self.phase not in ("init", "train") and is_unnamed_completion(line.text)):
            return
        self._remember(key)
        if self.end is None or self.end.how == "likely":
            self.end = Finish("likely", line.source, line.number, line.text[:MAX_TEXT])

    def reports_end(self, line: Line) -> None:
        """Record a message that reports the end of the training.

        If training continued after an earlier message of this kind, the message is about a part of the
        training and only resembles a final message.
        """
        key = skeleton(line.text)
        self._remember(key)
        how: Literal["words", "likely"] = "likely" if key in self.passed else "words"
        self.end = Finish(how, line.source, line.number, line.text[:MAX_TEXT])

    def _remember(self, key: str) -> None:
        if len(self.seeming_ends) < _MAX_PASSED:
            self.seeming_ends.add(key)

    def advance(self) -> None:
        """Record that the training continued. Earlier signs that the training ended were therefore wrong."""
        self.left, self.end, self.rounds = False, None, 0
        if self.seeming_ends:
            if len(self.passed) < _MAX_PASSED:
                self.passed |= self.seeming_ends
            self.seeming_ends = set()

    def enter(self, phase: Phase, time: float | None, *, announced: bool = False) -> None:
        self.phase, self.phase_time = phase, time
        if announced or phase == "train":
            self.awaited = announced

    def counter(self, sample: Sample) -> Counter:
        counter = self.counters.get(sample.series)
        if counter is None:
            counter = Counter(sample.step is not None, self.attempt)
            counter.nested = sample.series == EVALUATION
            counter.rounds = sample.series.startswith(COARSE)
            self.counters[sample.series] = counter
        if sample.from_bar and counter is not self.main_bar:
            main = self.main_bar
            if self.awaited:
                self.awaited, counter.evaluates = False, True
            elif counter.evaluates and (sample.step or 0) < (counter.last or 0):
                counter.evaluates = False  # the bar restarts without an announced evaluation

            # The training's bar is drawn first. A bar inside this bar, or a shorter bar after it, belongs to
            # an evaluation. Lightning 1 draws an additional first bar, "Training: 0it", which never advances.
            if not counter.evaluates and (
                main is None
                or (main.complete and (sample.total_steps or 0) > (main.total or 0))
                or (not main.last and main.total is None and sample.step and "epoch" in sample.values)
            ):
                if main is not None:
                    main.nested = True
                self.main_bar = counter
                counter.nested = False
            else:
                counter.nested = True
        return counter


def _counts(counter: Counter) -> bool:
    return counter.counts_steps and not counter.nested


class ProgressTracker:
    """The steps, step durations, phase, and end of a run, derived from the lines of all ranks."""

    def __init__(self) -> None:
        self.last_progress_time: float | None = None  #: time of the latest line that showed progress
        self.progressed = False  #: True if any line showed progress
        self._streams: dict[tuple[str, int | None], _Stream] = {}
        self._counters = 0
        self._gaps: dict[str, dict[str, int]] = {}  # source → kind of metrics → number of gaps
        self._furthest = NOWHERE
        self.first_step: int | None = None  #: the lowest step that the log shows

    def add(self, sample: Sample | None, line: Line) -> bool:
        """Process a line and its sample, if any. Return whether the line showed progress.

        A line that has no sample can show the phase of the run if it contains one of ``phases.SIGN_WORDS``.
        """
        if sample is None:
            sign = phase_sign(line.text)
            if sign is None:
                return False
        else:  # transformers prints ``train_runtime`` in a summary when ``train()`` returns
            sign = "finished" if "train_runtime" in sample.values else None
            if "eval_loss" in sample.values and "loss" not in sample.values:
                sign = "eval"  # the result of an evaluation (the next training step ends the phase "eval")
        stream = self._stream(line)
        if sample is not None and sign == "eval":
            stream.awaited = False
        if sign == "finished":
            stream.reports_end(line)
        elif sign == "ended":
            stream.seems_over(line)
        elif sign == "left":
            stream.left = True
        elif sign == "restarted":
            stream.main_bar = None
        elif sign == "announced":
            stream.enter("eval", line.time, announced=True)
        elif sign is not None:
            stream.enter(sign, line.time)
        progressed = sample is not None and self._sampled(stream, sample, line)
        # The last state of a bar has no line break at its end, so an announcement can follow in the same
        # line.
        announces = sample is not None and sample.from_bar and ANNOUNCES in line.text
        if announces and phase_sign(line.text) == "announced":
            stream.enter("eval", line.time, announced=True)
        return progressed

    def counter(self, sample: Sample, line: Line) -> Counter | None:
        """Return the counter to which a sample in this line belongs."""
        return self._stream(line).counters.get(sample.series)

    def goes_back(self, sample: Sample) -> bool | None:
        """Return whether the step is lower than the last step of each rank, or ``None`` if none is known."""
        counters = (stream.counters.get(sample.series) for stream in self._streams.values())
        known = [counter for counter in counters if counter is not None and counter.last is not None]
        return all(counter.goes_back(sample) for counter in known) if known else None

    def skip(self, source: str, kinds: Collection[str]) -> None:
        """Record that lines with metrics of these kinds were skipped in a source.

        The kinds are keys of ``scan.patterns.METRICS``.
        """
        gaps = self._gaps.setdefault(source, {})
        for kind in kinds:
            gaps[kind] = gaps.get(kind, 0) + 1

    def _stream(self, line: Line) -> _Stream:
        key = (line.source, line.rank)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(line)
        return stream

    def _sampled(self, stream: _Stream, sample: Sample, line: Line) -> bool:
        loss = sample.values.get("loss")
        if loss is not None:
            stream.last_loss, stream.loss_time = loss, sample.time
        if sample.series == "":
            return False
        if sample.series not in stream.counters:
            if self._counters >= _MAX_COUNTERS:
                return False
            self._counters += 1
        counter = stream.counter(sample)
        gaps = self._gaps.get(stream.source)
        if gaps is not None:
            counter.resume(gaps.get(sample.series.partition(" ")[0], 0))
        during: Phase = "train" if stream.phase == "init" else stream.phase
        attempt, rose = counter.attempt, counter.seen(sample, during)
        if rose:
            self._rose(stream, counter, sample)
            if counter.attempt > attempt and not counter.again:
                stream.passed.clear()
        if counter.complete and _counts(counter) and (counter.rounds or counter.total is None):
            stream.end = stream.end or Finish("total", line.source, line.number, line.text[:MAX_TEXT])
            stream.rounds = counter.last if counter.rounds and counter.last is not None else 0
        return rose

    def _rose(self, stream: _Stream, counter: Counter, sample: Sample) -> None:
        if counter.nested:
            stream.enter("eval", sample.time)
        # The first state of a bar does not show a completed step.
        elif not (sample.from_bar and sample.step == 0):
            stream.enter("train", sample.time)
            if not (counter.rounds and counter.last is not None and counter.last <= stream.rounds):
                stream.advance()
        self.progressed = True
        last = counter.last
        if last is not None and _counts(counter):
            steps, rounds = self._furthest
            at = (counter.attempt, last)
            if counter.rounds:
                rounds = max(rounds, at)
            else:
                if steps[1] < 0:
                    self.first_step = None  # the earlier numbers counted rounds, not steps
                steps = max(steps, at)
            self._furthest = steps, rounds
            if counter.rounds == self.in_rounds and (self.first_step is None or last < self.first_step):
                self.first_step = last
        if sample.time is not None:
            self.last_progress_time = max(sample.time, self.last_progress_time or sample.time)

    def merge(self, other: ProgressTracker) -> None:
        """Add the streams of another tracker that read other files, possibly in another process.

        Raise `ValueError` if both trackers followed the same source and rank.
        """
        if not self._streams.keys().isdisjoint(other._streams):
            raise ValueError("both trackers followed the same source and rank")
        self._streams.update(other._streams)
        self._gaps.update(other._gaps)
        self._counters += other._counters
        self.progressed |= other.progressed
        both = [each for each in (self, other) if self.in_rounds == other.in_rounds or not each.in_rounds]
        firsts = [tracker.first_step for tracker in both if tracker.first_step is not None]
        self.first_step = min(firsts, default=None)
        steps, rounds = zip(self._furthest, other._furthest, strict=True)
        self._furthest = max(steps), max(rounds)
        times = [t for t in (self.last_progress_time, other.last_progress_time) if t is not None]
        self.last_progress_time = max(times, default=None)

    @property
    def trained(self) -> bool:
        """True if a line showed progress in the training.

        Progress in an evaluation or in an unknown loop is not sufficient.
        """
        return any(
            counter.rises and name not in (WEAK, EVALUATION)
            for stream in self._streams.values()
            for name, counter in stream.counters.items()
        )

    # ---- steps

    @property
    def in_rounds(self) -> bool:
        """True if the log shows only epochs, episodes, or games. These rounds then count as the steps."""
        return self._furthest[0][1] < 0

    @property
    def attempt(self) -> int:
        """The number of the current attempt: 1 plus the number of times that the step numbers restarted."""
        return self._furthest[self.in_rounds][0]

    @property
    def last_step(self) -> int | None:
        """The highest step of the latest attempt."""
        last = self._furthest[self.in_rounds][1]
        return last if last >= 0 else None

    def _leading(self) -> Iterator[Counter]:
        for stream in self._streams.values():
            for counter in stream.counters.values():
                same = counter.attempt == self.attempt and counter.rounds == self.in_rounds
                if _counts(counter) and same:
                    yield counter

    @property
    def total_steps(self) -> int | None:
        """The planned number of steps."""
        leading = [c for c in self._leading() if c.total]
        return max(leading, key=lambda c: (c.last or 0, c.total or 0)).total if leading else None

    @property
    def steps(self) -> dict[int | None, int]:
        """The last step of each rank."""
        found: dict[int | None, int] = {}
        for stream in self._streams.values():
            last = stream.last(rounds=self.in_rounds)
            if last is not None:
                found[stream.rank] = max(last, found.get(stream.rank, last))
        return dict(sorted(found.items(), key=lambda item: (item[0] is None, item[0] or 0)))

    @property
    def last_loss(self) -> float | None:
        """The latest loss of the run, which can be NaN.

        If the lines have no times, return the loss of the rank with the highest step. If several ranks
        reached this step, return the loss of the lowest rank.
        """
        streams = [s for s in self._streams.values() if s.last_loss is not None]
        if not streams:
            return None
        return max(
            streams,
            key=lambda s: (s.loss_time or 0.0, *s.furthest(rounds=self.in_rounds), -(s.rank or 0), s.source),
        ).last_loss

    # ---- durations

    @property
    def stride(self) -> int:
        """The number of steps between two signs of progress (10 if a log shows every tenth step)."""
        return max((c.stride for c in self._leading() if c.last == self.last_step), default=1)

    def durations(self, phase: Phase = "train") -> list[float]:
        """Return the seconds between signs of progress in a phase.

        The stall threshold is learned from these values.
        """
        return self._longest(lambda counter: () if counter.nested else counter.durations.get(phase, ()))

    @property
    def waited(self) -> float:
        """The number of seconds for which a progress bar stayed at its last step.

        If a bar is redrawn when its process exits, the clock in the bar shows this time.
        """
        return max((c.waited for c in self._leading() if c.last == self.last_step), default=0.0)

    def step_seconds(self) -> list[float]:
        """Return the seconds per step in chronological order.

        If the lines have no times, the printed values are returned.
        """
        return self._longest(lambda counter: counter.step_seconds if _counts(counter) else ())

    def _longest(self, times_of: Callable[[Counter], Collection[float]]) -> list[float]:
        """Return the durations from the counter that has the most durations.

        If several counters have the same number of durations, the counter of the lowest rank is used.
        """
        found = (
            (len(times), -(stream.rank or 0), stream.source, name, times)
            for stream in self._streams.values()
            for name, counter in stream.counters.items()
            if (times := times_of(counter))
        )
        return list(max(found, key=lambda entry: entry[:4], default=((),))[-1])

    def forget_paces(self) -> None:
        """Clear the seconds per step, because the values of the next training phase are not comparable."""
        for stream in self._streams.values():
            for counter in stream.counters.values():
                counter.step_seconds.clear()

    # ---- state

    @property
    def phase(self) -> Phase:
        """The current phase of the run.

        A phase that one rank announced continues until any rank completes another step.
        """
        if not self.progressed:
            return "init"
        last = self.last_step
        for stream in sorted(self._streams.values(), key=lambda s: (s.rank or 0, s.source)):
            if stream.phase in ("init", "train"):
                continue
            reached = stream.last(rounds=self.in_rounds)
            if reached is not None:
                if last is not None and reached >= last:
                    return stream.phase
            elif stream.phase_time is not None and stream.phase_time >= (self.last_progress_time or math.inf):
                return stream.phase
            elif last is None and self.last_progress_time is None and stream.counters:
                return stream.phase  # if there are no steps or times, the last phase of the stream is used
        return "train"

    @property
    def finish(self) -> Finish | None:
        """The strongest evidence that the training is complete.

        A line that only resembles the final message of a program is accepted only if steps were completed
        before the line.
        """
        order = _SUREST.index
        return min(self._ends(), key=lambda end: (order(end.how), end.source, end.number), default=None)

    def _ends(self) -> Iterator[Finish]:
        unreached = self._unreached()
        for stream in self._streams.values():
            if stream.end is not None and (stream.end.how != "likely" or self._may_be_over(stream.end)):
                yield stream.end
            if self._reached(stream, unreached):
                yield Finish("total", stream.source)
            if stream.left:
                yield Finish("left", stream.source)

    def states_end_after(self, line: Line) -> bool:
        """Return whether the source of a line reports the end of the training after the line."""
        ends = (stream.end for stream in self._streams.values() if stream.source == line.source)
        return any(end is not None and end.number > line.number for end in ends)

    def states_end_before(self, line: Line) -> bool:
        """Return whether the source of a line reports the end of the training before the line."""
        return any(
            end.source == line.source and 0 < end.number < line.number
            for end in self._ends()
            if end.how == "words" or (end.how == "likely" and announces_end(end.text))
        )

    def _may_be_over(self, seeming_ends: Finish) -> bool:
        """Return whether a line that resembles a final message can mark the end of the training.

        Steps must precede the line. If the line does not mention the training, each counter must be less
        than two lines short of its total.
        """
        counters = (c for s in self._streams.values() for c in s.counters.values() if _counts(c))
        return self.progressed and (
            announces_end(seeming_ends.text)
            or not any(c.falls_short for c in counters if c.attempt == self._furthest[c.rounds][0])
        )

    def _reached(self, stream: _Stream, unreached: Mapping[str, int]) -> bool:
        """Return whether a counter of the stream reached its total and no rank counts to a larger total.

        If the ranks have different numbers of batches, the run is not complete when the first rank has read
        its last batch.
        """
        return any(
            counter.complete
            and counter.attempt == self.attempt
            and (counter.total or 0) >= unreached.get(series, 0)
            for series, counter in stream.counters.items()
            if _counts(counter) and counter.rounds == self.in_rounds
        )

    def _unreached(self) -> dict[str, int]:
        """For each series, return the largest total that a rank has not reached."""
        found: dict[str, int] = {}
        attempt = self.attempt
        for stream in self._streams.values():
            for series, counter in stream.counters.items():
                if counter.total and counter.attempt == attempt and not counter.complete:
                    found[series] = max(counter.total, found.get(series, 0))
        return found

    @property
    def finished(self) -> bool:
        """True if the log shows that the training is complete, or that a process exited successfully."""
        return self.finish is not None

    @property
    def surely_finished(self) -> bool:
        """True if the training is certainly complete.

        A line that only resembles a final message is not sufficient.

        A counter that reached its total is not sufficient either if the counter can restart in another
        epoch, or if the log shows no loss. Without a loss, the counter might not belong to a training run.
        """
        return bool(self._sure_evidence())

    @property
    def only_reached_total(self) -> bool:
        """True if the training is complete and only a counter that reached its total shows this.

        Such a counter might count the steps of a part of the run, such as its first epoch.
        """
        return self._sure_evidence() == {"total"}

    def _sure_evidence(self) -> set[str]:
        """Return the kinds of evidence that the training is certainly complete."""
        ends = list(self._ends())
        found: set[str] = {
            end.how for end in ends if end.how != "likely" and (end.how != "total" or end.text)
        }
        if any(end.how == "total" and not end.text for end in ends) and self.last_loss is not None:
            counters = (counter for stream in self._streams.values() for counter in stream.counters.values())
            if not any(counter.endless and _counts(counter) for counter in counters):
                found.add("total")
        return found

    @property
    def shows_finish(self) -> bool:
        """True if the steps or the messages of the training show that the training is complete."""
        finish = self.finish
        return finish is not None and finish.how != "left"

    def reached_total(self, line: Line) -> bool:
        """Return whether the output of the line's rank proves that the training reached its total."""
        stream = self._streams.get((line.source, line.rank))
        if stream is None or not self._reached(stream, self._unreached()):
            return False
        return not any(counter.endless and _counts(counter) for counter in stream.counters.values())

    def summary(self) -> Progress:
        """Return the progress of the run as a record for the diagnosis."""
        loss = self.last_loss
        return Progress(
            first_step=self.first_step,
            last_step=self.last_step,
            total_steps=self.total_steps,
            last_loss=loss if loss is not None and math.isfinite(loss) else None,
            finished=self.finished,
        )
