"""MLPerf's records (``mlperf_logging``), which NeMo's, MaxText's and the vendors' benchmark runs print."""

from __future__ import annotations

import re

from stallwatch_rules.samples.found import Found
from stallwatch_rules.text.numbers import NUMBER, number

MARK = ":::MLLOG {"
_KEY = re.compile(r'"key": "(\w{1,40})", "value": (' + NUMBER + r")?")
_STEP = re.compile(r'"metadata": \{[^}]{0,300}"(step|step_num|iteration|samples_count)": (\d{1,15})')
_INSIDE = re.compile(r'"(?:train_)?loss": (' + NUMBER + r")")  # of the statistics of an interval
_LOSSES = {"train_loss": "loss", "loss": "loss", "eval_loss": "eval_loss", "eval_error": "eval_loss"}


def from_mlperf(text: str) -> Found | None:
    """A loss, or statistics of an interval: the step is what the benchmark counts, steps or samples."""
    start = text.find(MARK)
    key = _KEY.search(text, start) if start >= 0 else None
    if key is None:
        return None
    at = _STEP.search(text, key.end())
    step = int(at[2]) if at else None
    if key[1] in _LOSSES and key[2]:
        ours = _LOSSES[key[1]]
        return Found(step if ours == "loss" else None, None, {ours: number(key[2])}, "mlperf")
    if key[1] != "tracked_stats" or step is None:
        return None
    loss = _INSIDE.search(text, key.end())
    return Found(step, None, {"loss": number(loss[1])} if loss else {}, "mlperf")
