"""MLPerf's records (``mlperf_logging``), which NeMo's, MaxText's and the vendors' benchmark runs print."""

from __future__ import annotations

from stallwatch_rules.records import EVALUATION
from stallwatch_rules.samples.found import Found
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, number

MARK = ":::MLLOG {"
_KEY = lazy(r'"key": "(\w{1,40})", "value": (' + NUMBER + r")?")
_STEP = lazy(r'"metadata": \{[^}]{0,300}"(?:step|step_num|iteration)": (\d{1,15})')
_INSIDE = lazy(r'"(?:train_)?loss": (' + NUMBER + r")")  # of the statistics of an interval
_LOSSES = {"train_loss": "loss", "loss": "loss", "eval_loss": "eval_loss", "eval_error": "eval_loss"}


def from_mlperf(text: str) -> Found | None:
    """A loss, or statistics of an interval. A record that counts samples has no step."""
    start = text.find(MARK)
    key = _KEY.search(text, start) if start >= 0 else None
    if key is None:
        return None
    ours = _LOSSES.get(key[1]) if key[2] else None
    if ours == "eval_loss":
        return Found(None, None, {ours: number(key[2])}, EVALUATION)
    at = _STEP.search(text, key.end())
    step = int(at[1]) if at else None
    # Losses and statistics may be counted in different ways: each is a counter of its own.
    if ours is not None:
        return Found(step, None, {ours: number(key[2])}, "loss mlperf")
    if key[1] != "tracked_stats" or step is None:
        return None
    loss = _INSIDE.search(text, key.end())
    return Found(step, None, {"loss": number(loss[1])} if loss else {}, "loss mlperf stats")
