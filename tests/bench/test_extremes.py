"""Smaller inputs of ``bench/extremes.py`` are read or refused in bounded memory."""

from __future__ import annotations

from pathlib import Path

import extremes
import pytest

FOUND = "FAILED   The GPU ran out of memory"
SAID = {
    "a hole of 10 GB": "NO TRAINING LOG",
    "random bytes, 256 MB": "is a binary file, no",
}
MOST = 400  #: memory limit of a process in MiB


@pytest.mark.parametrize("name", extremes.EXTREMES)
def test_extreme_inputs_are_read_or_refused_in_bounded_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    extremes.EXTREMES[name](path, 0.01)
    _, _, peak, said = extremes.measured(path)
    assert SAID.get(name, FOUND) in said
    assert peak < MOST


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for size in (40_000_000, 160_000_000):
        path = tmp_path / f"{size}.log"
        extremes.stretched(size)(path, 1.0)
        peaks.append(extremes.measured(path)[2])
    assert peaks[1] < peaks[0] + 40
