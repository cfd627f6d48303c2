"""Read progress bars of training loops: bars of tqdm and Keras, and bars that Lightning draws with rich."""

from __future__ import annotations

import re

from stallwatch_rules.records import EVALUATION, Line, Sample
from stallwatch_rules.samples.fields import Found
from stallwatch_rules.samples.pairs import metrics_by_field, rates
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, duration, lowered, number

_BAR = lazy(
    r"([^|]{0,80}?)(?:\d{1,3}%)?(?:\|[^|]*\|)? ?\b(\d{1,15})(?:/(\d{1,15}|\?)|it|steps?|batch(?:es)?) "
    r"\[([\d:]+)(?:<(?:[\d:]+|\?))?(?:, *(?:(" + NUMBER + r"|\?) ?([^\s,\]]{1,12})))?"
    r"([^\]]*)\]?"
)
_TRAINING_LABEL = lazy(
    r"\W*(?:train(?:ing)?(?: (?:step|epoch|progress)s?)?|train step of epoch"
    r"|(?:global |optimi[sz]er )?(?:step|iter(?:ation)?)s?|epochs?)[\s\d\[\]/:,.=-]*",
    re.IGNORECASE,
)
# Labels of other bars that show a loss, which belong to evaluations or to loops over parts of a step.
_EVALS = r"eval|valid|\bval\b|\btest|\bdev\b"
_OTHER_LABEL = lazy(_EVALS + r"|predict|infer|generat|sampl|scor|rollout|critic|perplex", re.IGNORECASE)
_EVALUATES = lazy(_EVALS, re.IGNORECASE)
_WITH_LOSS = lazy(
    r"(?<![\w/])(?:train[_/ ])?(?:step_|batch_|avr_|avg_)?loss(?:\s?[:=]\s?[-\dn]|\s(?:-?\d|nan\b))",
    re.IGNORECASE,
)
_EPOCH = lazy(r"epochs?\s*\[?(\d{1,9})", re.IGNORECASE)
_STEPS_A_SECOND = ("it/s", "step/s", "steps/s", "batch/s", "iter/s")
_SECONDS_A_STEP = ("s/it", "s/step", "s/steps", "s/batch", "s/iter")


def _pace(rate: str, unit: str) -> float | None:
    """Convert the rate of a bar to seconds per step. Return ``None`` if the bar does not count steps."""
    value = number(rate)
    if unit in _SECONDS_A_STEP:
        return value
    return 1 / value if unit in _STEPS_A_SECOND and value > 0 else None


class Bar:
    """One printed state of a progress bar. ``label`` is the text before the bar, without the colon."""

    __slots__ = ("done", "elapsed", "label", "open", "postfix", "seconds", "total", "training")

    def __init__(self, found: re.Match[str]) -> None:
        label, done, total, elapsed, rate, unit, self.postfix = found.groups()
        self.label = label.strip()
        if self.label:
            self.label = self.label.rstrip(":").rstrip()
        self.done = int(done)
        self.open = total is None or total == "?"  #: True if the total of the bar is unknown
        self.total = 0 if self.open else int(total)
        self.elapsed = duration(elapsed)
        unit = unit or "it/s"
        self.seconds = _pace(rate, unit) if rate and rate != "?" else None
        counts_steps = unit in _STEPS_A_SECOND or unit in _SECONDS_A_STEP
        self.training = counts_steps and (
            not (self.label or self.open)
            or _TRAINING_LABEL.fullmatch(self.label) is not None
            # The label can be the name of a job or of a dataset.
            or (_WITH_LOSS.search(self.postfix) is not None and _OTHER_LABEL.search(self.label) is None)
        )

    @property
    def epoch(self) -> float | None:
        """The epoch in the label of the bar, or ``None`` if there is none.

        A label contains an epoch if each epoch has its own bar.
        """
        found = _EPOCH.search(self.label) if self.label else None
        return float(found[1]) if found else None


def read_bar(text: str) -> Bar | None:
    """Return the progress bar in a line, or ``None`` if the line contains no bar."""
    found = _BAR.match(text)
    return Bar(found) if found else None


# Messages of datasets 1.0 to 2.14 (``builder.py``). After such a message, datasets draws a bar without a
# label. The bar counts the splits of the dataset, such as "train" and "test", while datasets loads them.
_LOADS_DATASET = lazy(
    r"(?:^|[\s>:-])(?:Found cached|Reusing) dataset \S+ \(|^Dataset \S+ downloaded and prepared to "
)
_MOST_SPLITS = 8  # maximum number of splits in such a bar
_LOADED_WITHIN = 10.0  # maximum number of seconds in such a bar
_NEAR = 2  # maximum number of lines between the message and the bar, and between two such bars


class DatasetBars:
    """A reader that recognizes the bars that count the splits of a dataset in the lines of one rank."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at = -_NEAR - 1  # number of the last line with such a message or such a bar

    def include(self, line: Line, sample: Sample | None) -> bool:
        """Read the next line and return whether its sample counts the splits of a dataset."""
        if sample is None:
            if "dataset" in line.text and _LOADS_DATASET.search(line.text):
                self._at = line.number
            return False
        values = sample.values
        found = (
            line.number - self._at <= _NEAR
            and sample.from_bar
            and 0 < (sample.total_steps or 0) <= _MOST_SPLITS
            and values.get("elapsed_seconds", _LOADED_WITHIN) < _LOADED_WITHIN
            and "loss" not in values
        )
        self._at = line.number if found else self._at
        return found


_RICH = lazy(
    r"Epoch (?P<epoch>\d{1,9})/(?P<last>\d{1,9}|-\d) +[━╸╺ ]+ +(?P<done>\d{1,15})/(?P<total>\d{1,15}|--) +"
    r"(?P<elapsed>[\d:]+) •(?: +[\d:-]+)? +(?P<rate>" + NUMBER + r")it/s(?: (?P<more>.*))?$"
)
# torchtune prints the loss before its bar: "1|25|Loss: 0.85" (epoch and step of the run).
_TORCHTUNE = lazy(r"(\d{1,9})\|(\d{1,15})\|Loss: (" + NUMBER + r"):")
# Keras draws one bar for each epoch, and other programs draw similar bars. Keras 2: "20/60 [====>....] - ETA:
# 3s - loss: 0.51". Keras 3: "20/60 ━━━━━━━━ 3s 30ms/step - loss: 0.51". If the length of the epoch is
# unknown, Keras draws no bar.
_COUNTED = lazy(
    r"(?:\[?[Tt]rain(?:ing)?\]?:? )? *(?P<done>\d{1,15})/(?P<total>\d{1,15}|Unknown)"
    r"(?P<bar> +(?:\[[=>.#\- ]*\]|[━─╸╺]+|[=#\-]*>[ .]*))?(?: (?:- )?(?P<rest>.*))?$"
)
_A_STEP = lazy(r"(?<![\w.])(" + NUMBER + r")(s|ms|us)/step\b")
_PARTS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}  # unit → fraction of a second
_WRITTEN = lazy(
    r"Progress on:train(?:ing)? ([\d.]+)(k?)it/([\d.]+)(k?)it rate:(" + NUMBER + r")(s/it|it/s)\b(.*)"
)  # the format in which Levanter writes its bar to a file


def from_bar(text: str) -> Found | None:
    """Return the values in one state of a tqdm bar, or ``None`` if the text is not a tqdm bar."""
    if "|Loss: " in text:
        return _from_torchtune(text)
    bar = read_bar(text)
    if bar is None:
        return None
    if not bar.training:
        return _from_other(bar)
    has_pairs = "=" in bar.postfix or ":" in bar.postfix or "loss" in bar.postfix
    values = metrics_by_field(bar.postfix) if has_pairs else {}
    if has_pairs:
        rates(lowered(bar.postfix), values)
    if bar.seconds is not None:
        values.setdefault("step_seconds", bar.seconds)
    if bar.elapsed is not None:
        values["elapsed_seconds"] = bar.elapsed
    if bar.epoch is not None:  # each epoch has a new bar, so the bar's total is not the run's total
        values["epoch"] = bar.epoch
        return Found(bar.done, None, values, "bar epoch")
    if bar.open:
        values["epoch_steps"] = 0.0
        return Found(bar.done, None, values, "bar open")
    return Found(bar.done, bar.total, values, f"bar {bar.total}")


def _from_other(bar: Bar) -> Found | None:
    """If a bar's label mentions an evaluation but not training, return the loss of the bar."""
    evaluates = _EVALUATES.search(bar.label) is not None and "loss" in bar.postfix
    loss = metrics_by_field(bar.postfix).get("loss") if evaluates else None
    if loss is None:
        return None
    return Found(bar.done, None if bar.open else bar.total, {"eval_loss": loss}, EVALUATION)


def _from_torchtune(text: str) -> Found | None:
    found = _TORCHTUNE.match(text)
    bar = read_bar(text[found.end() :]) if found is not None else None
    if found is None or bar is None:
        return None
    values = {"loss": number(found[3]), "epoch": float(found[1])}
    if bar.seconds is not None:
        values["step_seconds"] = bar.seconds
    return Found(int(found[2]), None, values, "bar epoch")


def may_be_counted(text: str) -> bool:
    """Return whether ``from_counted_bar`` can find a bar. This fast test rejects most lines."""
    return " - " in text and "/" in text[:40] and "loss" in text


def from_counted_bar(text: str) -> Found | None:
    """Return the values in a bar that shows the steps of one epoch. Keras prints such a bar for each epoch.

    Bars without a training loss are ignored, because downloads, evaluations, and predictions have similar
    bars.
    """
    found = _COUNTED.match(text)
    if found is None or found["rest"] is None:
        return None
    rest = found["rest"]
    pace = _A_STEP.search(rest)
    values = metrics_by_field(rest)
    if "loss" not in values or not (found["bar"] or pace):
        return None
    rates(lowered(rest), values)
    if pace is not None and number(pace[1]) > 0:
        values["step_seconds"] = number(pace[1]) * _PARTS[pace[2]]
    length = 0 if found["total"] == "Unknown" else int(found["total"])
    values["epoch_steps"] = float(length)
    return Found(int(found["done"]), None, values, f"bar of {length or 'unknown'}")


def from_written_bar(text: str) -> Found | None:
    """Return the values in a bar that the Levanter logger wrote, or ``None`` for other text."""
    found = _WRITTEN.search(text)
    if found is None or (found.start() and text[found.start() - 1] not in " :"):
        return None
    done, total = (
        round(float(count) * (1000 if thousand else 1))
        for count, thousand in ((found[1], found[2]), (found[3], found[4]))
    )
    values = metrics_by_field(found[7].replace("postfix:", " "))
    if seconds := _pace(found[5], found[6]):
        values.setdefault("step_seconds", seconds)
    return Found(done, total or None, values, f"bar {total}")


def from_rich_bar(text: str) -> Found | None:
    """Return the values in one state of a Lightning RichProgressBar, or ``None`` for any other text.

    If the output is a file, Lightning writes only the last state of the bar, 80 columns wide, and the
    remaining time is on the next line. The bar shows the current epoch, counted from 0, and the last epoch
    (lightning 2.6.6, ``pytorch/callbacks/progress/rich_progress.py``). Therefore, the steps of the previous
    epochs can be added.
    """
    found = _RICH.match(text)
    if found is None:
        return None
    more = found["more"] or ""
    values = metrics_by_field(more)
    rates(lowered(more), values)
    if seconds := _pace(found["rate"], "it/s"):
        values.setdefault("step_seconds", seconds)
    elapsed = duration(found["elapsed"])
    if elapsed is not None:
        values["elapsed_seconds"] = elapsed
    epoch, last = int(found["epoch"]), int(found["last"])
    values["epoch"] = float(epoch)
    if found["total"] == "--":  # the length of the dataset is unknown
        return Found(int(found["done"]), None, values, "bar epoch")
    length = int(found["total"])
    total = (last + 1) * length if epoch <= last else None
    return Found(epoch * length + int(found["done"]), total, values, "bar epoch")
