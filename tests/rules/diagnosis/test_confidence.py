"""Confidence in a primary cause, by named facts."""

from __future__ import annotations

import pytest

from stallwatch_rules.diagnosis.confidence import CAPS, LEAST, LESS, MOST, Rivals, confidence
from stallwatch_rules.records import Role


def test_single_cause_is_nearly_certain() -> None:
    assert confidence("cause") >= 0.9


Known = tuple[Role, Rivals, str]  # the fact is empty if there is none


@pytest.mark.parametrize(
    ("surer", "less_sure"),
    [
        (("cause", "none", ""), ("cause", "later", "")),
        (("cause", "later", ""), ("cause", "later-step", "")),
        (("cause", "later-step", ""), ("cause", "unordered", "")),
        (("cause", "unordered", ""), ("symptom", "unordered", "")),
        (("symptom", "none", ""), ("wrapper", "none", "")),
        (("cause", "none", ""), ("cause", "none", "judged")),
        (("cause", "none", ""), ("cause", "none", "signal-only")),
        (("cause", "none", ""), ("cause", "none", "unknown-beside")),
    ],
)
def test_confidence_increases_with_evidence(surer: Known, less_sure: Known) -> None:
    one, other = (confidence(role, rivals, [fact]) for role, rivals, fact in (surer, less_sure))
    assert one > other


@pytest.mark.parametrize("fact", [*CAPS, *LESS])
def test_doubts_do_not_increase_confidence(fact: str) -> None:
    assert confidence("cause", facts=[fact]) <= confidence("cause")


def test_confidence_stays_within_its_bounds() -> None:
    assert confidence("wrapper", facts=[*CAPS, *LESS]) == LEAST
    assert confidence("cause") <= MOST
