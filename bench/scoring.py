"""Score diagnoses by counting labeled cases. ``scoreboard.py`` runs the cases and prints the scores.

A label is the ID of a rule, ``unknown`` (a failure to which no rule applies), ``failed`` (any failure),
``healthy``, or ``benign:…`` (text that looks like a failure but is harmless).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import schema_1_verdict

ALARMS = ("failed", "stalled", "unknown-failure")
BY_PROGRESS = "zero3-trace-cache-invalidated"
BINS = ((0.9, 1.01), (0.7, 0.9), (0.5, 0.7), (0.0, 0.5))


@dataclass(frozen=True)
class Outcome:
    """The diagnosis and the label of one case."""

    case: str
    label: str
    verdict: str
    primary: str | None
    confidence: float
    found: frozenset[str]

    @classmethod
    def of(cls, case: str, label: str, diagnosis: Diagnosis) -> Outcome:
        first = diagnosis.primary
        return cls(
            case,
            label,
            schema_1_verdict(diagnosis),
            first.rule if first else None,
            first.confidence if first else 0.0,
            frozenset(finding.rule for finding in diagnosis.findings),
        )

    @property
    def quiet(self) -> bool:
        """Return True if the label says that the case has no failure."""
        return self.label == "healthy" or self.label.startswith("benign")

    @property
    def right(self) -> bool:
        """Return True if the diagnosis agrees with the label."""
        if self.quiet:
            return self.verdict not in ALARMS
        if self.label == "unknown":
            return self.verdict == "unknown-failure"
        if self.label == "failed":
            return self.verdict in ALARMS
        # The line alone is not a failure, so the rule must be found, and a different rule must not be
        # primary.
        if self.label == BY_PROGRESS:
            return self.label in self.found and self.primary in (None, self.label)
        return self.primary == self.label

    @property
    def named_cause(self) -> str:
        """The primary cause that the diagnosis names, or the verdict if the diagnosis names no cause."""
        return self.primary or self.verdict


_Z = 1.959964  #: quantile of the normal distribution for 95%


@dataclass(frozen=True)
class Share:
    """The share of right cases: the number of right cases and the number of all cases."""

    right: int
    all: int

    def __str__(self) -> str:
        return f"{self.right}/{self.all} ({self.right / self.all:.1%})" if self.all else "No cases"

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% Wilson score interval of the true share."""
        if not self.all:
            return 0.0, 1.0
        share, z = self.right / self.all, _Z / self.all
        middle = (share + _Z * z / 2) / (1 + _Z * z)
        half = _Z / (1 + _Z * z) * math.sqrt(share * (1 - share) / self.all + z * z / 4)
        return round(max(middle - half, 0.0), 6), round(min(middle + half, 1.0), 6)

    @property
    def measured(self) -> str:
        """The share with its interval, as text."""
        if not self.all:
            return "No cases"
        low, high = self.interval
        return f"{self.right}/{self.all} = {self.right / self.all:.1%} [{low:.1%}, {high:.1%}]"


def share(outcomes: Iterable[Outcome]) -> Share:
    """Return the share of right outcomes."""
    listed = list(outcomes)
    return Share(sum(item.right for item in listed), len(listed))


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of cases with a failure, except the cases with the label ``failed``."""
    return [outcome for outcome in outcomes if not outcome.quiet and outcome.label != "failed"]


def wrong_alarms(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes whose verdict is a failure, although the case has no failure."""
    return [outcome for outcome in outcomes if outcome.quiet and not outcome.right]


@dataclass(frozen=True)
class FamilyScore:
    """The precision and recall of one family of rules."""

    family: str
    precision: Share
    recall: Share


def by_family(outcomes: Sequence[Outcome], families: Mapping[str, str]) -> list[FamilyScore]:
    """Return the scores of each family.

    Causes that are named for cases without a failure reduce the precision.
    """
    claimed: dict[str, list[bool]] = defaultdict(list)
    labelled: dict[str, list[bool]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.label == "failed":
            continue
        if outcome.primary is not None and (outcome.verdict in ALARMS or not outcome.quiet):
            claimed[families.get(outcome.primary, "?")].append(outcome.right and not outcome.quiet)
        if not outcome.quiet and outcome.label in families:
            labelled[families[outcome.label]].append(outcome.right)
    return [
        FamilyScore(
            family,
            Share(sum(claimed[family]), len(claimed[family])),
            Share(sum(labelled[family]), len(labelled[family])),
        )
        for family in sorted({*claimed, *labelled})
    ]


@dataclass(frozen=True)
class Claim:
    """A cause that a diagnosis named, with its confidence. `right` is True if the cause is correct."""

    case: str
    confidence: float
    right: bool

    @property
    def frozen(self) -> bool:
        """Return True if the case is in the half that is not used for calibration.

        The hash of the case's name determines the half.
        """
        return hashlib.sha256(self.case.encode()).digest()[0] % 2 == 1


def claims(outcomes: Iterable[Outcome]) -> list[Claim]:
    """Return the cause from each diagnosis that reports a failure, even if the case has no failure."""
    return [
        Claim(outcome.case, outcome.confidence, outcome.right)
        for outcome in outcomes
        if outcome.primary is not None and outcome.verdict in ALARMS
    ]


@dataclass(frozen=True)
class Bin:
    """Claims whose confidence is in the same range."""

    low: float
    high: float
    score: Share
    mean: float  #: mean confidence of the claims

    @property
    def gap(self) -> float:
        """The difference between the mean confidence and the share of right claims."""
        return abs(self.score.right / self.score.all - self.mean) if self.score.all else 0.0


def calibration(claimed: Iterable[Claim]) -> list[Bin]:
    """Group the claims into bins by confidence and count the right claims in each bin."""
    listed = list(claimed)
    bins = []
    for low, high in BINS:
        inside = [item for item in listed if low <= item.confidence < high]
        score = Share(sum(item.right for item in inside), len(inside))
        mean = sum(item.confidence for item in inside) / len(inside) if inside else 0.0
        bins.append(Bin(low, high, score, mean))
    return bins


def expected_error(claimed: Iterable[Claim]) -> float:
    """Return the expected calibration error: the gap of each bin, weighted by the number of its claims."""
    bins = calibration(claimed)
    return sum(item.gap * item.score.all for item in bins) / max(sum(item.score.all for item in bins), 1)


def confusions(outcomes: Iterable[Outcome]) -> list[tuple[str, str, int]]:
    """For each confusion, return the label, the different name in the diagnosis, and the count.

    The most frequent confusion comes first.
    """
    counts = Counter((outcome.label, outcome.named_cause) for outcome in outcomes if not outcome.right)
    return [
        (label, named_cause, count)
        for (label, named_cause), count in sorted(counts.items(), key=lambda x: (-x[1], x[0]))
    ]
