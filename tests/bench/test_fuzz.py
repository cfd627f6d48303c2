"""Every parser of foreign bytes handles some thousand inputs, the same in each run; times are not judged."""

from __future__ import annotations

import bz2
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import fuzz
import pytest
from fuzzing import file_parsers, line_parsers, patterns, running, samples
from fuzzing.mutation import Mutator
from fuzzing.targets import BY_NAME, TARGETS, Target

_INPUTS = 12_000  # inputs for all parsers together: half a minute
_SHARES = fuzz.shares(TARGETS, _INPUTS)


@pytest.mark.parametrize("name", BY_NAME)
def test_parsers_raise_only_documented_errors_and_do_not_hang(name: str) -> None:
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
    """Return a target whose parser fails for some inputs."""
    target = Target("odd", _fail, lambda: (b"a 1 b", b"stop", b"c"), 10)
    monkeypatch.setitem(BY_NAME, "odd", target)
    return target


def test_failure_names_the_input_that_reproduces_it(odd: Target) -> None:
    found = [
        failure
        for failure in running.run(odd, seed=1, first=0, last=400, timed=False).failures
        if failure.kind == "raised"
    ]
    assert found
    assert "KeyError" in found[0].what
    assert b"9999" in running.make(odd, found[0].seed, found[0].number)


def test_crash_of_the_process_is_a_failure_and_fuzzing_continues(odd: Target) -> None:
    result = running.run(odd, seed=1, first=5, last=15, timed=False)
    killed = [failure.number for failure in result.failures if failure.kind == "killed"]
    assert 10 in killed
    assert all(running.make(odd, 1, number).startswith(b"stop") for number in killed)
    assert result.inputs == 10


def test_inputs_depend_only_on_the_seed() -> None:
    target = BY_NAME["redact"]
    mutator = Mutator(target.samples(), target.tokens)
    numbers = [number for number in range(200) if number % 10]
    one = [running.make(target, 1, number, mutator) for number in numbers]
    assert one == [running.make(target, 1, number, mutator) for number in numbers]
    assert one != [running.make(target, 2, number, mutator) for number in numbers]


def test_packed_samples_do_not_contain_the_current_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.0)
    assert samples.packed.__wrapped__() == samples.packed()


class Clock:
    """Simulated processor time: a fixed time for each line."""

    def __init__(self, each: float) -> None:
        self.now, self._each = 0.0, each

    def parse(self, data: bytes) -> None:
        self.now += self._each * data.count(b"\n")

    def process_time(self) -> float:
        return self.now


def _judged(clock: Clock, data: bytes, size: Callable[[bytes], int]) -> float:
    judge = running.Judge(Target("timed", clock.parse, lambda: (), 10, size=size))
    usual = b"a line of a usual length, such as logs have\n" * 20
    for item in [usual] * 300 + [data]:
        before = clock.now
        clock.parse(item)
        times = judge.take(item, clock.now - before)
    return times


def test_time_is_judged_relative_to_the_effective_size_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lines take as much time as long ones, so by bytes alone they would look slow."""
    clock, short = Clock(0.001), b"\n" * 4000
    monkeypatch.setattr(running.time, "process_time", clock.process_time)
    assert _judged(clock, short, len) > running.MOST_TIMES
    assert 0 < _judged(clock, short, line_parsers.size_of_lines) < running.MOST_TIMES


def test_time_is_judged_by_the_samples_if_most_inputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sound = Clock(0.001), b"a line\n" * 100
    monkeypatch.setattr(running.time, "process_time", clock.process_time)
    judge = running.Judge(Target("strict", clock.parse, lambda: (), 10), [sound])
    for item in [b"refused" * 100] * 300 + [sound]:
        before = clock.now
        clock.parse(item)
        times = judge.take(item, clock.now - before)
    assert times == pytest.approx(1)


def test_size_of_a_packed_input_is_its_unpacked_size() -> None:
    zeros, text = b"\0" * 200_000, b"step 1\nstep 2\n"
    for packed in (gzip.compress(zeros), bz2.compress(zeros), samples._tar({"a.gz": gzip.compress(zeros)})):
        assert file_parsers.size_unpacked(packed) >= len(zeros)
    broken = gzip.compress(zeros + random.Random(1).randbytes(1000))[:-400]
    assert file_parsers.size_unpacked(broken) >= len(zeros)
    assert file_parsers.size_unpacked(text) < 10 * len(text)


def test_interrupted_fuzzing_resumes(tmp_path: Path) -> None:
    state, targets = tmp_path / "state.json", [BY_NAME["iso-times"]]
    fuzz.fuzz(targets, 50, 1, state=state)
    assert fuzz.fuzz(targets, 80, 1, state=state)["iso-times"].inputs == 80
    assert json.loads(state.read_text())["results"]["iso-times"]["inputs"] == 80


@pytest.mark.parametrize("pattern", [r"^(a+)+$", r"x.*y", r"\s+$"])
def test_backtracking_pattern_is_found(pattern: str) -> None:
    assert patterns.texts(pattern, 0)
    assert any(len(text.of(100)) >= 100 and text.unit for text in patterns.texts(pattern, 0))
