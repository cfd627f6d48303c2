"""Metrics of a run that was not scraped, rebuilt from a real run's log copies."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from stallwatch_dashboard.data import rebuild as module
from stallwatch_dashboard.data.frames import RunFrames
from stallwatch_dashboard.data.log_copies import copies
from stallwatch_dashboard.data.rebuild import numbers_from_frames, rebuild, rebuilt_frames
from stallwatch_exporter.runs.runfolder import RunFolder


@pytest.fixture(scope="module")
def recorded(root: Path) -> RunFrames:
    return rebuild(copies(root / "tests" / "recordings" / "zero3-stall"))


def test_rebuilt_metrics_show_the_recorded_stall(recorded: RunFrames, root: Path) -> None:
    """Invalidations occur, become more frequent, and the steps end before the log does."""
    steps, invalidations = recorded.steps, recorded.invalidations
    assert recorded.rebuilt and not recorded.nothing
    text = (root / "tests" / "recordings" / "zero3-stall" / "ranks" / "rank0.log").read_text()
    last, total = re.findall(r"step (\d+)/(\d+)", text)[-1]
    assert recorded.total_steps == int(total)
    assert steps["v"].is_monotonic_increasing and steps["v"].iloc[-1] == int(last)
    assert invalidations["v"].iloc[-1] == len(invalidations) > 100
    middle = (steps["t"].min() + steps["t"].max()) / 2
    assert (invalidations["t"] < middle).sum() < (invalidations["t"] >= middle).sum()
    assert recorded.last_step_at is not None and recorded.last_step_at < invalidations["t"].max() + 60


def test_rebuilt_values_are_plausible(recorded: RunFrames) -> None:
    assert 0 < recorded.step_seconds["v"].median() < 10
    assert set(recorded.loss["rank"].dropna()) <= {0, 1} and recorded.loss["v"].between(0, 20).all()


def test_progress_bar_of_an_evaluation_is_not_a_step(make_run: Callable[..., RunFolder]) -> None:
    lines = [f"step {step} loss {9 - step}.5" for step in range(1, 6)]
    lines += [f"Evaluating: {n}/50 [00:0{n}<00:10,  1.0it/s]" for n in range(9)] + ["step 6 loss 0.4"]
    found = rebuild(copies(make_run("r", lines={0: lines}).path))
    assert list(found.steps["v"]) == [1, 2, 3, 4, 5, 6]
    assert found.step_seconds["v"].iloc[-1] == 10.0


def test_every_charted_value_of_the_log_is_read(make_run: Callable[..., RunFolder]) -> None:
    lines = [f"{{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 1e-05, 'step': {n}}}" for n in range(1, 6)]
    found = rebuild(copies(make_run("r", lines={0: lines}).path))
    numbers = (found.loss, found.grad_norm, found.learning_rate)
    assert [list(frame["v"]) for frame in numbers] == [[2.5] * 5, [1.25] * 5, [1e-05] * 5]


def test_limited_reading_is_reported(root: Path) -> None:
    found = rebuild(copies(root / "tests" / "recordings" / "zero3-stall"), most_bytes=20_000)
    assert found.notes and not found.steps.empty


def test_files_are_read_again_only_when_they_changed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(root / "tests" / "recordings" / "healthy" / "attempt_0", folder / "ranks")
    shutil.copytree(root / "tests" / "recordings" / "zero3-stall", folder, dirs_exist_ok=True)
    reads: list[int] = []
    real = module.rebuild
    monkeypatch.setattr(module, "rebuild", lambda *args: reads.append(1) or real(*args))
    first = rebuilt_frames(folder)
    assert rebuilt_frames(folder) is first and len(reads) == 1
    with (folder / "output.log").open("ab") as out:
        out.write(b"2026-11-21T00:37:12.000000000Z stdout F one more\n")
    assert rebuilt_frames(folder) is not first
    past = rebuilt_frames(folder, before=5.0)
    with (folder / "output.log").open("ab") as out:
        out.write(b"2026-11-21T00:37:13.000000000Z stdout F and another\n")
    assert rebuilt_frames(folder, before=5.0) is past


def test_baseline_is_the_early_step_time_of_the_run() -> None:
    times = [30.0] + [1.0] * 20 + [2.0] * 10
    frame = pd.DataFrame({"rank": pd.NA, "t": range(len(times)), "v": times})
    for rows, pace in ((frame, (2.0, 1.0)), (frame.head(3), (1.0, None)), (frame.head(0), (None, None))):
        found = numbers_from_frames(RunFrames(step_seconds=rows))
        assert (found.step_seconds, found.baseline_seconds) == pace
