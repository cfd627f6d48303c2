"""Portions made in a thread: the same ones, the same errors, and no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stallwatch_logs.decompress import read_ahead


def numbered(count: int, error: Exception | None = None) -> Iterator[bytes]:
    for number in range(count):
        yield b"%d" % number
    if error is not None:
        raise error


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "stallwatch-decompress"]


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_the_same_portions(count: int) -> None:
    assert list(read_ahead(numbered(count))) == list(numbered(count))
    assert not threads()


def test_an_error_comes_behind_what_came_before_it() -> None:
    found = []
    with pytest.raises(ValueError, match="broken"):
        for portion in read_ahead(numbered(50, ValueError("broken"))):
            found.append(portion)
    assert found == list(numbered(50))
    assert not threads()


def test_who_stops_early_leaves_no_thread() -> None:
    portions = read_ahead(numbered(1000))
    assert next(portions) == b"0"
    assert threads()
    portions.close()  # type: ignore[attr-defined]
    assert not threads()


def test_no_more_than_a_few_are_made_ahead() -> None:
    made, asked = [], threading.Event()

    def counted() -> Iterator[bytes]:
        for number in range(1000):
            made.append(number)
            if number == 5:
                asked.set()
            yield b""

    portions = read_ahead(counted())
    next(portions)
    assert asked.wait(120)
    assert len(made) <= 7
    portions.close()  # type: ignore[attr-defined]
