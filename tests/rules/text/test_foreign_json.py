"""Numbers in JSON from other programs."""

from __future__ import annotations

import math

import pytest

from stallwatch_rules.text.foreign_json import read_json


@pytest.mark.parametrize("number", [0, -1, 2**64 - 1, -(2**63)])
def test_64_bit_integers_are_integers(number: int) -> None:
    found = read_json(str(number))
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize("number", [2**64, 10**20 - 1, -(2**63) - 1, 10**30])
def test_larger_integers_are_floats(number: int) -> None:
    found = read_json(str(number))
    assert (found, type(found)) == (float(number), float)


def test_largest_integers_are_infinite() -> None:
    assert read_json("9" * 400) == math.inf
