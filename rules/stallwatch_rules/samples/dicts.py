"""Read dictionaries and JSON objects that trainers print.

The formats are from transformers, TRL, LLaMA-Factory, ms-swift, axolotl, OpenRLHF, and MLPerf.
"""

from __future__ import annotations

from stallwatch_rules.hints import may_hold
from stallwatch_rules.records import EVALUATION
from stallwatch_rules.samples.fields import Found, put
from stallwatch_rules.samples.prefixes import may_precede, names_settings
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER, duration, number

MARK = ":::MLLOG {"
_MLPERF_KEY = lazy(r'"key": "(\w{1,40})", "value": (' + NUMBER + r")?")
_MLPERF_STEP = lazy(r'"metadata": \{[^}]{0,300}"(?:step|step_num|iteration)": (\d{1,15})')
_INSIDE = lazy(r'"(?:train_)?loss": (' + NUMBER + r")")  # a loss among the statistics of an interval
_LOSSES = {"train_loss": "loss", "loss": "loss", "eval_loss": "eval_loss", "eval_error": "eval_loss"}


def from_mlperf(text: str) -> Found | None:
    """Return the loss or the statistics of an interval from a line in the MLPerf log format.

    If a record counts samples instead of steps, the result has no step.
    """
    start = text.find(MARK)
    key = _MLPERF_KEY.search(text, start) if start >= 0 else None
    if key is None:
        return None
    ours = _LOSSES.get(key[1]) if key[2] else None
    if ours == "eval_loss":
        return Found(None, None, {ours: number(key[2])}, EVALUATION)
    at = _MLPERF_STEP.search(text, key.end())
    step = int(at[1]) if at else None
    # Losses and statistics can have different step numbers, so each kind of record has its own counter.
    if ours is not None:
        return Found(step, None, {ours: number(key[2])}, "loss mlperf")
    if key[1] != "tracked_stats" or step is None:
        return None
    loss = _INSIDE.search(text, key.end())
    return Found(step, None, {"loss": number(loss[1])} if loss else {}, "loss mlperf stats")


_PAIR = lazy(
    r"""['"]([\w /().:-]{1,60})['"]\s?:\s?"""
    r"""(?:['"]?(""" + NUMBER + r""")['"]?\s?(?=[,}\]])|"([^"]{0,40})"|'([^']{0,40})')"""
)
_STEP_KEYS = (
    "current_steps", "global_step/max_steps", "global_step", "train/global_step", "trainer/global_step",
    "step", "steps", "iter", "iteration",
    "num_updates", "train_num_updates",  # names in fairseq
    "_step",  # count of logged records in wandb, if nothing else counts the steps
)  # fmt: skip
_TOTAL_KEYS = ("total_steps", "max_steps", "train/total_steps")
_COUNTS = frozenset((*_STEP_KEYS, *_TOTAL_KEYS))
_METRIC_KEYS = frozenset(("loss", "eval_loss", "train_runtime"))
_CONFIGURATION = ("batch_size", "zero_optimization", "per_device", "hidden_size", "num_train_epochs")
_COUNT = lazy(r"\d{1,15}")


def from_dict(text: str) -> Found | None:
    """Return the values in a dictionary that a trainer printed, or ``None`` for a configuration."""
    start = text.find("{")
    before = text[:start]
    if may_hold(text, _CONFIGURATION) or names_settings(before) or not may_precede(before):
        return None
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for key, digits, word, other in _PAIR.findall(text, start):
        if digits:
            numbers.setdefault(key, number(digits))
        else:
            words.setdefault(key, word or other)
    values: dict[str, float] = {}
    for key, value in numbers.items():
        put(values, key, value)
    if "train_runtime" in values:  # the summary of the run, whose loss is a mean over the whole run
        values.pop("loss", None)
    step, total = _step_of(numbers, words)
    if _METRIC_KEYS.isdisjoint(values) and not (step is not None and len(numbers) > 1 and values):
        return None
    elapsed = duration(words["elapsed_time"]) if "elapsed_time" in words else None
    if elapsed is not None:
        values["elapsed_seconds"] = elapsed
    # LLaMA-Factory prints the tokens per second under the name "throughput".
    if step is not None and "throughput" in numbers:
        values.setdefault("tokens_per_second", numbers["throughput"])
    return Found(step, total, values, "dict" if "loss" in values or step is not None else "")


def _step_of(numbers: dict[str, float], words: dict[str, str]) -> tuple[int | None, int | None]:
    if _COUNTS.isdisjoint(numbers) and _COUNTS.isdisjoint(words):
        return None, None
    step = total = None
    for key in _STEP_KEYS:
        if 0 <= numbers.get(key, -1) < 1e15 and numbers[key].is_integer():
            step = int(numbers[key])
            break
        done, slash, of = words.get(key, "").partition("/")
        if slash and _COUNT.fullmatch(done) and _COUNT.fullmatch(of):
            return int(done), int(of)
    for key in _TOTAL_KEYS:
        if 0 < numbers.get(key, 0) < 1e15 and numbers[key].is_integer():
            total = int(numbers[key])
            break
    return step, total
