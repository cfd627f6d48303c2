"""Every parser of foreign bytes holds for some thousand inputs, the same at each run; no time is judged."""

from __future__ import annotations

import json
from pathlib import Path

import fuzz
import pytest
from fuzzing import patterns, running
from fuzzing.mutation import Mutator
from fuzzing.targets import BY_NAME, TARGETS, Target

_INPUTS = 12_000  # of all parsers together: half a minute
_SHARES = fuzz.shares(TARGETS, _INPUTS)


@pytest.mark.parametrize("name", BY_NAME)
def test_nothing_undocumented_is_raised_and_nothing_hangs(name: str) -> None:
    result = running.run(BY_NAME[name], seed=22, first=0, last=min(_SHARES[name], 600) + 10, timed=False)
    assert result.failures == []
    assert result.inputs == min(_SHARES[name], 600) + 10


def _fail(data: bytes) -> None:
    if b"9999" in data:
        raise KeyError("nobody documented this")
    if data.startswith(b"stop"):
        raise SystemExit(3)


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A parser that cannot take everything."""
    target = Target("odd", _fail, lambda: (b"a 1 b", b"stop", b"c"), 10)
    monkeypatch.setitem(BY_NAME, "odd", target)
    return target


def test_a_failure_names_the_input_that_makes_it_again(odd: Target) -> None:
    found = [
        one
        for one in running.run(odd, seed=1, first=0, last=400, timed=False).failures
        if one.kind == "raised"
    ]
    assert found
    assert "KeyError" in found[0].what
    assert b"9999" in running.make(odd, found[0].seed, found[0].number)


def test_what_ends_the_process_is_a_failure_and_the_next_input_follows(odd: Target) -> None:
    result = running.run(odd, seed=1, first=5, last=15, timed=False)
    killed = [one.number for one in result.failures if one.kind == "killed"]
    assert 10 in killed
    assert all(running.make(odd, 1, number).startswith(b"stop") for number in killed)
    assert result.inputs == 10


def test_a_seed_makes_the_same_inputs_and_another_one_others() -> None:
    target = BY_NAME["redact"]
    mutator = Mutator(target.samples(), target.tokens)
    numbers = [number for number in range(200) if number % 10]
    one = [running.make(target, 1, number, mutator) for number in numbers]
    assert one == [running.make(target, 1, number, mutator) for number in numbers]
    assert one != [running.make(target, 2, number, mutator) for number in numbers]


def test_an_interrupted_fuzzing_goes_on_where_it_was(tmp_path: Path) -> None:
    state, targets = tmp_path / "state.json", [BY_NAME["iso-times"]]
    fuzz.fuzz(targets, 50, 1, state=state)
    assert fuzz.fuzz(targets, 80, 1, state=state)["iso-times"].inputs == 80
    assert json.loads(state.read_text())["results"]["iso-times"]["inputs"] == 80


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"x.*y", r"\s+$"])
def test_a_pattern_that_backtracks_is_found(pattern: str) -> None:
    assert patterns.texts(pattern, 0)
    assert any(len(one.of(100)) >= 100 and one.unit for one in patterns.texts(pattern, 0))
