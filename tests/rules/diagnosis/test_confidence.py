"""Confidence in a primary cause, by named facts."""

from __future__ import annotations

import pytest

from stallwatch_rules.diagnosis.confidence import CAPS, LEAST, LESS, MOST, Rivals, confidence
from stallwatch_rules.records import Role


def test_one_cause_and_nothing_else_is_nearly_sure() -> None:
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
def test_what_is_surer(surer: Known, less_sure: Known) -> None:
    one, other = (confidence(role, rivals, [fact]) for role, rivals, fact in (surer, less_sure))
    assert one > other


@pytest.mark.parametrize("fact", [*CAPS, *LESS])
def test_no_fact_makes_it_surer(fact: str) -> None:
    assert confidence("cause", facts=[fact]) <= confidence("cause")


def test_it_stays_within_its_bounds() -> None:
    assert confidence("wrapper", facts=[*CAPS, *LESS]) == LEAST
    assert confidence("cause") <= MOST
