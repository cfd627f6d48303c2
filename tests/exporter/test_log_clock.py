"""Times in a log's lines are only labels during a run, whatever the run's clock does."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest


@pytest.mark.parametrize("jump", [7200.0, -7200.0, 3600.0, -3600.0])
def test_jumping_timestamps_are_not_a_stall(run: Any, jump: float) -> None:
    clock = datetime(2026, 10, 25, 1, 58, 0)
    for step in range(1, 41):
        run.wait(4)
        clock += timedelta(seconds=4 + (jump if step == 20 else 0.0))
        run.say(f"{clock:%Y-%m-%d %H:%M:%S},000 INFO step {step}/1000 loss {2.0 / step:.4f}")
    assert run.sent == []
    run.wait(120)  # the run hangs
    assert run.changes == [("stall/silent-hang-no-error/1", "open", "")]
    assert run.sent[-1].step == 40 and 30.0 <= run.sent[0].stalled_seconds < 60.0
