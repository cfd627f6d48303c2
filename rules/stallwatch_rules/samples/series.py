"""Learn step counters from metrics lines whose format is unknown.

The template of a line is the line without its numbers (``text.masking.template_key``). One of the numbers can
be a counter: an integer that increases from line to line, and that has a name or is the first number in the
line. The lines of a template with a counter form a series. The number of lines that are required to accept a
series depends on the words in the lines, which are listed in ``series.json``:

* One line is sufficient if the counter has a known name and the line mentions a loss, a score, or a similar
  metric.
* Two lines are required if the counter has a known name and the line also contains decimals. Two lines are
  also required if the counter is alone on its line (as in ``Epoch 3/20``, or in a table of names and values)
  and the lines in between mention losses or scores.
* Two lines are required for columns with titles if the first title is the name of a counter.
* Three lines with equal differences are required if the first number has no name and losses or scores follow.
* Twelve lines with equal differences are required for columns without titles or for unknown words. In
  addition, another number must fall or rise overall, as a loss does.

Numbers with a unit of time or size are not losses. Lines about loading, ranks, layers, requests, and similar
subjects do not belong to training, unless one line is sufficient. A rejected template is not examined again.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from stallwatch_rules.records import EVALUATION, Line, Sample
from stallwatch_rules.samples import extract
from stallwatch_rules.samples.bars import DatasetBars
from stallwatch_rules.samples.fields import FIELDS
from stallwatch_rules.samples.pairs import metrics_by_field, rates
from stallwatch_rules.samples.prefixes import is_aggregate, may_precede, names_settings
from stallwatch_rules.samples.series_words import (
    NUMBER,
    WORDS,
    Number,
    counted_by,
    is_of,
    may_count,
    number_at,
    parts,
)
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import template_key
from stallwatch_rules.text.numbers import lowered

SERIES = "series"  #: first word of the names of learned series

#: Prefix of the names of series that count epochs, episodes, or games instead of steps.
ROUNDS = "series rounds"
ROWS = "series rows"  #: prefix of the names of series whose lines have no word for the counted unit

#: Name of a series without a word for the counted unit, in a log that never mentions training. Such a series
#: might be unrelated to training.
WEAK = f"{ROWS} alone"

COARSE = (ROUNDS, ROWS)  #: prefixes of the names of series that count steps only if no other series does
MAX_TEXT = 400  #: maximum number of characters in a row of a series
_MOST_KINDS = 256  # maximum number of templates followed or examined for each source and rank
_MOST_NONE = 1024  # maximum number of hashes for rejected templates, and for templates that occurred once
_MOST_BELOW = 64  # maximum number of series that follow headings
_PATIENCE = 64  # number of lines after which a template that is not yet a series is rejected

# Required numbers of lines. Fewer lines are required if the words are more conclusive.
_FEW, _SOME, _MANY = 2, 3, 12
_TREND = 0.5  # minimum difference between the numbers of falls and rises in a trend, as a share of all pairs
_NEAR = 3  # maximum number of lines between the column titles and the first row
_SHORT = 80  # maximum number of characters in a line that contains only a counter

# A date, a time, a path, an address, or a hash. Digits in such text do not count as numbers.
_STAMP = lazy(
    r"\b\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b"
    r"|\b\d{1,3}(?:\.\d{1,3}){2,}\b|\b0x[0-9a-fA-F]+|(?<![\w./-])[\w.-]*/[\w./-]*[A-Za-z][\w./-]*"
    r"|^[A-Z]{4,8}:[\w.]+:|^[IWEF]\d{4}\s(?:\d[\d:.]*\s+\d+)?|\b[\w-]+\.[a-z]{1,4}:\d+"
)
_MAY_BE_STAMP = lazy(r"\d[:-]\d|/[\w.-]*[A-Za-z]|0x|\w:\d|^[A-Z]|\d\.\d+\.\d")
# Text between a counter and its total, as in "3/20", "3 of 20", or "3 de 20".
_OF = lazy(r"\s{0,2}(?:/|\s[^\W\d_]{2,3}\s)\s{0,9}")
_FAILS = lazy(
    r"\b\w+(?:Error|Exception|Warning)\b|\b(?:ERROR|FATAL|CRITICAL|WARN(?:ING)?)\b|\b[Aa]ssert|\b[Ff]ail|\\n"
)
_SETTING = lazy(r"\s*(?:#|[A-Za-z_]\w*(?:\.\w+)+\s?=)")  # a comment or a setting, as in "train.iter=5"
_DIGIT = lazy(r"\d")
_FINE = lazy(r"\.\d{3}")  # scores in tables for human readers have fewer decimals
_HEAD = lazy(r"[\s|,;#\"]*([^\W\d]\w*)[ \t|,;\"]+[^\W\d]")  # a line with the names of columns
_FOLLOWS = lazy(r"[\]\s):|,-]{1,4}([^\W\d_]+)\s")  # a single word after the counter
_CELLS = lazy(r"\s*[|,;\t]\s*|\s{2,}|\s")
_BATCHES = frozenset(("batch", "minibatch"))
_RETURNS = frozenset(("reward", "rew", "return", "ret"))
# Many activities other than training also have scores.
_SCORES = frozenset(("score", "scores", "psnr", "ssim"))
_PLAYS = frozenset(("ep", "episode", "episodes", "game", "games"))
# Words in lines that mention an epoch but do not announce its beginning.
_NO_HEADING = lazy(
    r"\b(?:resum|restor|load|continu|from|after|until|last|max|num|since|every)", re.IGNORECASE
)


@dataclass(slots=True, eq=False)
class _Kind:
    """A line template, with its counter.

    The lines are stored until the template is accepted or rejected.
    """

    lines: int = 0
    numbers: tuple[Number, ...] = ()
    metric: bool = False  #: True if the lines contain a loss, a score, or a similar metric
    at: int = -1  #: index of the number that can be a counter, or -1 if there is none
    total: int | None = None  #: index of the number that is the counter's total
    outer: int | None = None  #: index of the epoch counter, if the lines also count steps within each epoch
    outer_total: int | None = None
    needed: int = 0  #: number of lines required to accept the template as a series, or 0 after a rejection
    plain: bool = False  #: True if the lines contain no times and no paths
    alone: bool = False  #: True if the lines contain only the counter, and its total if there is one
    rounds: bool = False  #: True if the counter counts epochs, episodes, or games
    evaluates: bool = False
    rows: list[list[float]] = field(default_factory=list)  #: numbers of each line before the decision
    last: int | None = None  #: the last value of the counter
    falls: int = 0  #: number of lines with a lower count than the previous line
    repeats: int = 0  #: number of lines with the same count as the previous line
    series: str = ""  #: name of the accepted series
    names: list[str] | None = None  #: names of the columns
    fields: list[tuple[str, int]] | None = None  #: fields of the numbers, each with the index of its number
    weak: bool = False  #: True if no word in the lines shows that the lines are training output


class _Heading(NamedTuple):
    """A line that announces an epoch by its number."""

    epoch: float
    epochs: float | None
    line: int


@dataclass(slots=True)
class _Below:
    """The last count of a series that is printed after lines that announce epochs."""

    heading: int
    last: int
    continues: bool = False  #: True if the counts continue after the next epoch is announced


@dataclass(slots=True, eq=False)
class _Stream:
    """The state of the reader for one rank in one source."""

    #: template → its data, in order of first occurrence
    kinds: dict[bytes, _Kind] = field(default_factory=dict)
    #: hash of a rejected template → True if its lines contain a metric
    none: dict[int, bool] = field(default_factory=dict)
    once: set[int] = field(default_factory=set)  #: hashes of templates that have occurred only once so far
    tried: int = 0  #: number of templates that were examined
    trains: bool = False  #: True if any line mentions training
    heading: _Heading | None = None  #: the last line that announced an epoch
    #: name of a series that follows epoch headings → its counts
    below: dict[str, _Below] = field(default_factory=dict)
    head: list[str] | None = None  #: names of columns; the first name is the name of a counter
    head_at: int = 0  #: line number of the column names in ``head``
    metric_at: int = 0  #: line number of the last loss, score, or similar metric
    block: Sample | None = None  #: the latest sample from a line that contains only a counter
    based: bool = False  #: True if counters that are alone in their lines start at zero
    closed: bool = False  #: True if a line with a metric followed the latest counter
    #: hash of a template → number of its lines with metrics
    metrics: dict[int, int] = field(default_factory=dict)
    dataset_bars: DatasetBars = field(default_factory=DatasetBars)


Learning = dict[int | None, _Stream]  #: the data learned about one source, by rank


class SeriesReader:
    """A reader of the samples of one run. It learns the series of lines whose format is unknown."""

    def __init__(self) -> None:
        self.learnt = False  #: True if any line belonged to a learned series
        self._sources: defaultdict[str, Learning] = defaultdict(dict)

    def read(self, line: Line) -> Sample | None:
        """Return the sample of a line, or ``None`` if there is none.

        The lines of each source and rank must be passed in order.
        """
        sample = extract(line)
        learning = self._sources[line.source]
        stream = learning.get(line.rank)
        if stream is None:
            stream = learning[line.rank] = _Stream()
        if stream.dataset_bars.include(line, sample):
            return None
        unnumbered = sample is None or (sample.step is None and sample.series.startswith("loss"))
        learned = _learnt(stream, line, sample) if unnumbered else None
        if learned is not None:
            self.learnt, sample = True, learned
        elif sample is not None and ("loss" in sample.values or "eval_loss" in sample.values):
            stream.metric_at = line.number
        if sample is None or sample.step is None or sample.series == "" or "epoch" in sample.values:
            return sample
        if sample.from_bar:
            block = stream.block
            return sample if block is None else _in_epoch(block.step, block.total_steps, sample)
        return _below(stream, sample)


def _learnt(stream: _Stream, line: Line, sample: Sample | None) -> Sample | None:
    text = line.text
    if len(text) > MAX_TEXT:
        return None
    if not stream.trains:
        stream.trains = (
            "train" in text or "Train" in text or "poch" in text or "loss" in text or "Loss" in text
        )
    if _DIGIT.search(text) is None:
        head = _HEAD.match(text)
        if head is not None and counted_by(parts(head[1])):
            stream.head = [name for name in _CELLS.split(text.strip(' |,;#"\t')) if name]
            stream.head_at = line.number
        return None
    if not may_count(text):
        return None
    bare = text.rstrip("* ") if text[-1] in "* " else text  # a star can mark the best value so far
    key = template_key(bare.encode("utf-8", "surrogatepass"))
    kind = stream.kinds.get(key)
    if kind is None:
        metric = stream.none.get(hash(key))
        if metric is None:
            kind = _new_kind(stream, key, line)
            metric = kind is not None and kind.metric
        if kind is None or not kind.needed:
            return _end_of_epoch(stream, key, line, sample) if metric else None
    kind.lines += 1
    if kind.metric:
        stream.metric_at = line.number
    if kind.names is not None and kind.names is stream.head:
        stream.head_at = line.number
    if not kind.needed:
        del stream.kinds[key]
        _remember(stream, key, kind)
        return _end_of_epoch(stream, key, line, sample) if kind.metric else None
    found = NUMBER.findall(text if kind.plain else _STAMP.sub(" ", text))
    numbers = [float(number.replace(",", "")) for number in found]
    if len(numbers) != len(kind.numbers) or not math.isfinite(numbers[kind.at]):
        return None
    count = int(numbers[kind.at])
    if not kind.series:
        if kind.alone and kind.rows and stream.metric_at <= kind.rows[-1][-1]:
            kind.rows.clear()  # if no metric is between them, the earlier counts are not training steps
        kind.rows.append([*numbers, float(line.number)])
        if kind.alone and _series_name(kind).startswith(ROUNDS) and _NO_HEADING.search(text) is None:
            epochs = numbers[kind.total] if kind.total is not None else None
            stream.heading = _Heading(numbers[kind.at], epochs, line.number)
        if not _decided(kind, trains=stream.trains):
            return None
    kind.repeats += count == kind.last
    kind.falls += kind.last is not None and count < kind.last
    kind.last = count
    if (
        kind.outer is None
        and stream.heading is None
        and not kind.numbers[kind.at].counts
        and kind.falls > max(1, kind.lines / _PATIENCE)
    ):
        kind.needed = 0  # the lines are a short list that is printed repeatedly
        return None
    learned = _sample(kind, numbers, line, sample)
    if kind.alone and learned.series.startswith(ROUNDS):
        stream.block, stream.closed = learned, False
        stream.heading = _Heading(numbers[kind.at], learned.total_steps, line.number)
        stream.based = stream.based or learned.step == 0
        return replace(learned, total_steps=None)  # the line shows the start of the counted unit, not its end
    return learned


def _new_kind(stream: _Stream, key: bytes, line: Line) -> _Kind | None:
    """Examine a new template and return its data. Return ``None`` if there are too many templates.

    If many templates have already been examined, a new template is examined only at its second occurrence.
    """
    if stream.tried >= _MOST_KINDS and hash(key) not in stream.once:
        if len(stream.once) >= _MOST_NONE:
            stream.once.clear()
        stream.once.add(hash(key))
        return None
    stream.tried += 1
    near = stream.head is not None and line.number - stream.head_at <= _NEAR
    kind = _kind_of(line.text, stream.head if near else None)
    if not kind.needed:
        _remember(stream, key, kind)
        return kind
    if len(stream.kinds) >= _MOST_KINDS:
        oldest = next((other for other, known in stream.kinds.items() if not known.series), None)
        if oldest is None:
            return None
        del stream.kinds[oldest]
    stream.kinds[key] = kind
    return kind


def _remember(stream: _Stream, key: bytes, kind: _Kind) -> None:
    """Record that the lines of a template do not form a series."""
    if len(stream.none) >= _MOST_NONE:
        stream.none.clear()
        stream.metrics.clear()
    stream.none[hash(key)] = kind.metric


def _end_of_epoch(stream: _Stream, key: bytes, line: Line, sample: Sample | None) -> Sample | None:
    """Return a sample for the end of the last epoch.

    A line that has a metric but no counter can show this end.
    """
    stream.metric_at = line.number
    block = stream.block
    if block is None:
        return None
    seen = stream.metrics.get(hash(key), 0)
    if seen < _PATIENCE:
        stream.metrics[hash(key)] = seen + 1
    done = (block.step or 0) + stream.based
    if stream.closed or done != block.total_steps:
        return None
    if seen + 1 > done:
        return None  # lines of this template occur several times in an epoch
    stream.closed = True
    values = sample.values if sample is not None else {}
    return replace(block, time=line.time, values={**values, "epoch": float(block.step or 0)})


def _below(stream: _Stream, sample: Sample) -> Sample:
    """Return a sample with the epoch that the log last announced.

    The total of the sample is the number of steps in an epoch, unless the counter continues after the next
    epoch is announced.
    """
    heading, step = stream.heading, sample.step
    if heading is None or step is None or sample.series == EVALUATION:
        return sample
    known = stream.below.get(sample.series)
    if known is None:
        if len(stream.below) >= _MOST_BELOW:
            return sample
        known = stream.below[sample.series] = _Below(heading.line, step)
    if known.heading != heading.line:
        known.heading, known.continues = heading.line, known.continues or step > known.last
    known.last = step
    sample = _in_epoch(heading.epoch, heading.epochs, sample)
    if known.continues or not sample.total_steps:
        return sample
    values = {**sample.values, "epoch_steps": float(sample.total_steps)}
    return replace(sample, total_steps=None, values=values)


def _decided(kind: _Kind, *, trains: bool) -> bool:
    """Return whether the template can be accepted as a series after its latest line."""
    rows, at = kind.rows, kind.at
    counts = [row[at] for row in rows]
    if len(counts) > 1 and counts[-1] <= counts[-2]:
        if counts[-1] == counts[-2] and _counts_within(kind):
            return _decided(kind, trains=trains)
        del rows[-1 if counts[-1] == counts[-2] else slice(-1)]
        kind.needed = 0 if kind.lines > _PATIENCE and kind.needed > 1 else kind.needed
        return False
    if len(counts) < kind.needed:
        return False
    steps = {later - earlier for earlier, later in pairwise(counts)}
    even = len(steps) <= 1 or (len(steps) == 2 and counts[0] in (0, 1))
    if kind.needed >= _SOME and not even:
        del rows[0]
    elif kind.needed < _MANY or _trends(kind):
        name = _series_name(kind)
        if name == ROWS and not trains:
            name = WEAK
        kind.series = EVALUATION if kind.evaluates and not name.startswith(ROUNDS) else name
        kind.rows = []
        return True
    elif len(rows) >= 3 * _MANY:
        del rows[0]
    if kind.lines > _PATIENCE:
        kind.needed = 0
    return False


def _counts_within(kind: _Kind) -> bool:
    """Return whether the first number counts epochs and the second number counts steps.

    An example is ``[1, 2000] loss: 2.2``.
    """
    at, numbers = kind.at, kind.numbers
    if kind.outer is not None or kind.total is not None or numbers[at].counts or at + 2 >= len(numbers):
        return False
    inner, (previous, last) = numbers[at + 1], kind.rows[-2:]
    if not inner.whole or inner.unit or inner.inside or inner.words or last[at + 1] <= previous[at + 1]:
        return False
    kind.outer, kind.at = at, at + 1
    return True


def _series_name(kind: _Kind) -> str:
    counter = kind.numbers[kind.at]
    words = "".join(counter.words)[-24:]
    if kind.weak:
        return ROWS
    if kind.rounds or counter.counts == "rounds":
        return f"{ROUNDS} {words}"
    named = counter.counts or kind.names is not None or kind.outer is not None
    return f"series steps {words}" if named else ROWS


def _trends(kind: _Kind) -> bool:
    """Return whether a decimal falls or rises overall. A sum, which rises in each line, is excluded."""
    for place, number in enumerate(kind.numbers):
        if place in (kind.at, kind.total) or number.unit or number.inside or is_of("others", number.words):
            continue
        values = [row[place] for row in kind.rows]
        if number.whole or len(set(values)) < len(values) / 2:
            continue
        pairs = [(earlier, later) for i, earlier in enumerate(values) for later in values[i + 1 :]]
        falls = sum((earlier > later) - (earlier < later) for earlier, later in pairs)
        if falls >= _TREND * len(pairs) or -len(pairs) < falls <= -_TREND * len(pairs):
            return True
    return False


def _sample(kind: _Kind, numbers: list[float], line: Line, sample: Sample | None) -> Sample:
    step, total = int(numbers[kind.at]), None
    if kind.outer is None and kind.total is not None and kind.repeats == 0:
        total = int(numbers[kind.total]) or None if step <= numbers[kind.total] < math.inf else None
    values = dict(sample.values) if sample is not None else _values(kind, numbers, line.text)
    if kind.evaluates:
        loss = values.get("eval_loss", values.get("loss"))
        values = {} if loss is None else {"eval_loss": loss}
    if kind.series == EVALUATION:
        return Sample(line.rank, line.time, step, None, values, series=EVALUATION)
    if kind.outer is not None:
        values["epoch"] = numbers[kind.outer]
        if kind.total is not None:
            values["epoch_steps"] = numbers[kind.total]
        if kind.outer_total is not None:
            values["epochs"] = numbers[kind.outer_total]
    elif kind.series.startswith(ROUNDS):
        values["epoch"] = float(step)
    else:
        epoch = next(
            (n for n, number in zip(numbers, kind.numbers, strict=True) if number.counts == "rounds"), None
        )
        if epoch is not None:
            values.setdefault("epoch", epoch)
            if total:  # it can be the number of steps in an epoch or in the run
                values["stated_steps"], total = float(total), None
    return Sample(line.rank, line.time, step, total, values, series=kind.series)


def _values(kind: _Kind, numbers: list[float], text: str) -> dict[str, float]:
    if kind.fields is None:
        kind.fields = _fields_of(kind, numbers, text)
    return {name: numbers[place] for name, place in kind.fields}


def _fields_of(kind: _Kind, numbers: list[float], text: str) -> list[tuple[str, int]]:
    """Return the fields of the numbers in a line, based on column titles or on known names in the line."""
    if kind.names is not None:
        known = [FIELDS.get(name.lower()) for name in kind.names]
        named = {found[0]: place for place, found in enumerate(known[: len(numbers)]) if found is not None}
        return list(named.items())
    values = metrics_by_field(text)
    rates(lowered(text), values)
    fields = [(name, numbers.index(value)) for name, value in values.items() if value in numbers]
    if "reward" not in values:
        rewards = [
            place for place, number in enumerate(kind.numbers) if not _RETURNS.isdisjoint(number.words)
        ]
        fields += [("reward", place) for place in rewards[:1]]
    return fields


def _in_epoch(epoch: float | None, epochs: float | None, sample: Sample) -> Sample:
    """Return the sample with its epoch and, if it is known, with the number of epochs."""
    if epoch is None:
        return sample
    more = {"epoch": float(epoch)}
    if epochs:
        more["epochs"] = float(epochs)
    return replace(sample, values={**sample.values, **more})


def _kind_of(text: str, head: list[str] | None) -> _Kind:
    """Classify a template by the first line with this template."""
    kind = _Kind()
    if not may_count(text) or _FAILS.search(text) or names_settings(text[: max(0, text.find("{"))]):
        return kind
    kind.plain = _MAY_BE_STAMP.search(text) is None
    bare = text if kind.plain else _STAMP.sub(" ", text)
    words = parts(bare)
    kind.metric = is_of("metrics", words)
    spans = [found.span() for found in NUMBER.finditer(bare)]
    kind.numbers = tuple(number_at(bare, spans, place) for place in range(len(spans)))
    numbers = kind.numbers
    free = [place for place, n in enumerate(numbers) if n.whole and not (n.unit or n.inside)]
    counters = [place for place in free if numbers[place].counts]
    others = is_of("others", words) and not (
        numbers and not numbers[0].words and {"loss", "losses"} & set(words)
    )
    kind.at = next((p for p in counters if numbers[p].counts == "steps"), counters[0] if counters else -1)
    if kind.at < 0 and free and free[0] == 0 and not is_of("metrics", numbers[0].words):
        kind.at = 0
    if kind.at < 0:
        return kind
    _find_inner(kind, bare, spans)
    before = bare[: numbers[kind.at].start]
    if is_aggregate(before):
        return kind
    if kind.at == 0 or not counters:
        words_before = parts(bare[: spans[0][0]])
        kind.evaluates = is_of("evaluations", words_before) and not {"train", "training"} & set(words_before)
    if kind.at == 0 and not counters and not {"train", "training"} & set(words):
        follows = _FOLLOWS.match(bare, spans[kind.at if kind.total is None else kind.total][1])
        if follows is not None and is_of("evaluations", [follows[1].lower()]):
            kind.evaluates = True
    kind.weak = _weak(words, numbers[kind.at])
    measured = [
        n
        for place, n in enumerate(numbers)
        if place not in (kind.at, kind.total, kind.outer, kind.outer_total)
        and not (n.unit or n.inside or n.counts or is_of("others", n.words) or is_of("times", n.words))
    ]
    kind.metric = kind.metric and bool(measured or len(numbers) == 1)
    decimals = [n for n in measured if not n.whole]
    if not _BATCHES.isdisjoint(numbers[kind.at].words) and not (kind.metric and measured):
        return kind  # if there is no metric, the batches might not belong to training
    if counters:
        if kind.metric and measured:
            kind.needed = 1 if numbers[kind.at].counts and may_precede(before) else _SOME
        elif (
            len(numbers) == (1 if kind.total is None else 2)
            and not others
            and len(text) <= _SHORT
            and "epochs" not in numbers[kind.at].words  # "epochs: 20" is a setting
            and _SETTING.match(text) is None
        ):
            kind.needed, kind.alone = _FEW, True
        elif not others and (decimals or kind.total is not None):
            kind.needed = _FEW if decimals else _SOME
    elif others or not decimals:
        return kind
    elif not words and head is not None and len(head) - len(numbers) in (0, 1):
        kind.needed = _FEW
        if len(head) == len(numbers) or is_of("times", parts(head[-1])):
            kind.names = head
        if not is_of("steps", parts(head[0])):
            kind.rounds = True
    elif kind.metric and not numbers[0].words:
        kind.needed = _SOME
    elif words or _FINE.search(bare) is not None:
        kind.needed = _MANY
    return kind


def _weak(words: Sequence[str], counter: Number) -> bool:
    """Return whether scores are the only metrics in a line.

    Scores alone might not be from training. For example, games also print scores: ``player A score 9``.
    """
    measures = WORDS["metrics"].intersection(words)
    return bool(measures) and measures <= _SCORES and _PLAYS.isdisjoint(counter.words)


def _find_inner(kind: _Kind, text: str, spans: Sequence[tuple[int, int]]) -> None:
    """Find the total of the counter and a second counter within the epoch, as in ``[3/5][0/190]``."""
    at = kind.at
    kind.total = _total_of(kind, text, spans, at)
    last = at if kind.total is None else kind.total
    counter = kind.numbers[at]
    if counter.counts == "steps":
        return
    for place in range(last + 1, min(last + 3, len(spans) - 1)):
        inner = kind.numbers[place]
        total = _total_of(kind, text, spans, place)
        if inner.whole and not inner.unit and total is not None and (counter.counts or place == last + 1):
            kind.outer, kind.outer_total, kind.at, kind.total = at, kind.total, place, total
            return


def _total_of(kind: _Kind, text: str, spans: Sequence[tuple[int, int]], place: int) -> int | None:
    """Return the index of the number that is a counter's total, as in ``3/20``.

    Return ``None`` if the counter has no total.
    """
    after = place + 1
    if after == len(spans) or not kind.numbers[after].whole:
        return None
    return after if _OF.fullmatch(text, spans[place][1], spans[after][0]) else None
