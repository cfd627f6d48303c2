"""tqdm's progress bars, and which of them show training."""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, duration, number

_BAR = lazy(
    r"([^|]{0,80}?)(?:(?:\d{1,3}%)?\|[^|]*\|)? ?\b(\d{1,15})(?:/(\d{1,15}|\?)|it|steps?|batch(?:es)?) "
    r"\[([\d:]+)(?:<(?:[\d:]+|\?))?(?:, *(?:(" + NUMBER + r"|\?) ?([^\s,\]]{1,12})))?"
    r"([^\]]*)\]?"
)
_TRAINING = lazy(
    r"(?:train(?:ing)?(?: (?:step|epoch|progress)s?)?|train step of epoch"
    r"|(?:global |optimi[sz]er )?(?:step|iter(?:ation)?)s?|epochs?)[\s\d\[\]/:,.=-]*",
    re.IGNORECASE,
)
# What else draws bars with a loss: evaluations, and loops over parts of a step.
_EVALUATION = r"eval|valid|\bval\b|\btest|\bdev\b"
_OTHER = lazy(_EVALUATION + r"|predict|infer|generat|sampl|scor|rollout|critic|perplex", re.IGNORECASE)
_EVALUATES = lazy(_EVALUATION, re.IGNORECASE)
_WITH_LOSS = lazy(r"(?<![\w/])(?:train[_/ ])?(?:step_|avr_|avg_)?loss\s?[:=]\s?[-\dn]", re.IGNORECASE)
_EPOCH = lazy(r"epochs?\s*\[?(\d{1,9})", re.IGNORECASE)
_STEPS_A_SECOND = ("it/s", "step/s", "steps/s", "batch/s", "iter/s")
_SECONDS_A_STEP = ("s/it", "s/step", "s/steps", "s/batch", "s/iter")


class Bar:
    """One drawing of a bar. ``label`` is what stands before it, without the colon."""

    __slots__ = ("done", "elapsed", "label", "open", "postfix", "seconds", "total", "training")

    def __init__(self, found: re.Match[str]) -> None:
        label, done, total, elapsed, rate, unit, self.postfix = found.groups()
        self.label = label.strip()
        if self.label:
            self.label = self.label.rstrip(":").rstrip()
        self.done = int(done)
        self.open = total is None or total == "?"  #: how long it will be is not known
        self.total = 0 if self.open else int(total)
        self.elapsed = duration(elapsed)
        unit = unit or "it/s"
        self.seconds: float | None = None
        if rate and rate != "?":
            value = number(rate)
            if unit in _SECONDS_A_STEP:
                self.seconds = value
            elif unit in _STEPS_A_SECOND and value > 0:
                self.seconds = 1 / value
        counts_steps = unit in _STEPS_A_SECOND or unit in _SECONDS_A_STEP
        self.training = counts_steps and (
            not (self.label or self.open)
            or _TRAINING.fullmatch(self.label) is not None
            or self._names_a_loss()
        )

    @property
    def evaluates(self) -> bool:
        """Whether its name is an evaluation's."""
        return _EVALUATES.search(self.label) is not None

    def _names_a_loss(self) -> bool:
        """Whether a bar that is called after anything else (the job, the data) tells a training's loss."""
        return _WITH_LOSS.search(self.postfix) is not None and _OTHER.search(self.label) is None

    @property
    def epoch(self) -> float | None:
        """The epoch that the label names: the bar then starts again with each epoch."""
        found = _EPOCH.search(self.label) if self.label else None
        return float(found[1]) if found else None


def read_bar(text: str) -> Bar | None:
    """The bar that the line is, or ``None``."""
    found = _BAR.match(text)
    return Bar(found) if found else None
