"""How sure a primary is, by named facts."""

from __future__ import annotations

import itertools

import pytest

from stallwatch_rules.diagnosis.confidence import CAPS, LEAST, LESS, MOST, Known, confidence


def test_one_cause_and_nothing_else_is_nearly_sure() -> None:
    assert confidence(Known("cause")) >= 0.9


@pytest.mark.parametrize(
    ("surer", "less_sure"),
    [
        (Known("cause"), Known("cause", "later")),
        (Known("cause", "later"), Known("cause", "later-step")),
        (Known("cause", "later-step"), Known("cause", "unordered")),
        (Known("cause", "unordered"), Known("symptom", "unordered")),
        (Known("symptom"), Known("wrapper")),
        (Known("cause"), Known("cause", facts=frozenset({"judged"}))),
        (Known("cause"), Known("cause", facts=frozenset({"signal-only"}))),
        (Known("cause"), Known("cause", facts=frozenset({"unknown-beside"}))),
    ],
)
def test_what_is_surer(surer: Known, less_sure: Known) -> None:
    assert confidence(surer) > confidence(less_sure)


@pytest.mark.parametrize("fact", [*CAPS, *LESS])
def test_no_fact_makes_it_surer(fact: str) -> None:
    known = Known("cause", facts=frozenset({fact}))
    assert confidence(known) <= confidence(Known("cause"))


def test_it_stays_within_its_bounds() -> None:
    every = list(itertools.chain(CAPS, LESS))
    assert confidence(Known("wrapper", facts=frozenset(every))) == LEAST
    assert confidence(Known("cause")) <= MOST
