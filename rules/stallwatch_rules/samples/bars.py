"""Progress bars that show training: tqdm's, and the ones that Lightning draws with rich."""

from __future__ import annotations

import re

from stallwatch_rules.samples.found import Found
from stallwatch_rules.samples.pairs import keyed
from stallwatch_rules.samples.rates import rates
from stallwatch_rules.samples.tqdm import read_bar
from stallwatch_rules.text.numbers import NUMBER, duration, lowered, number

_RICH = re.compile(
    r"Epoch (?P<epoch>\d{1,9})/(?P<last>\d{1,9}|-\d) +[━╸╺ ]+ +(?P<done>\d{1,15})/(?P<total>\d{1,15}) +"
    r"(?P<elapsed>[\d:]+) •(?: +[\d:-]+)? +(?P<rate>" + NUMBER + r")it/s(?: (?P<more>.*))?$"
)


def from_bar(text: str) -> Found | None:
    """One drawing of tqdm's bar."""
    bar = read_bar(text)
    if bar is None or not bar.training:
        return None
    values = keyed(bar.postfix) if "=" in bar.postfix else {}
    if "=" in bar.postfix:
        rates(lowered(bar.postfix), values)
    if bar.seconds is not None:
        values.setdefault("step_seconds", bar.seconds)
    if bar.elapsed is not None:
        values["elapsed_seconds"] = bar.elapsed
    if bar.epoch is not None:  # the bar starts again with each epoch: its total is not the run's
        values["epoch"] = bar.epoch
        return Found(bar.done, None, values, "bar epoch")
    return Found(bar.done, bar.total, values, f"bar {bar.total}")


def from_rich_bar(text: str) -> Found | None:
    """One drawing of Lightning's RichProgressBar.

    Into a file it draws the last state only, 80 columns wide: the time that is left then stands in the next
    line. The epochs count from 0 and their last is told (lightning 2.6.6,
    ``pytorch/callbacks/progress/rich_progress.py``), so that the steps of the epochs before can be added.
    """
    found = _RICH.match(text)
    if found is None:
        return None
    more = found["more"] or ""
    values = keyed(more)
    rates(lowered(more), values)
    rate, elapsed = number(found["rate"]), duration(found["elapsed"])
    if rate > 0:
        values.setdefault("step_seconds", 1 / rate)
    if elapsed is not None:
        values["elapsed_seconds"] = elapsed
    epoch, last, length = int(found["epoch"]), int(found["last"]), int(found["total"])
    values["epoch"] = float(epoch)
    total = (last + 1) * length if epoch <= last else None
    return Found(epoch * length + int(found["done"]), total, values, "bar epoch")
