"""Build the tables that the live benchmark prints at the end."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]
_COLUMNS = ("right", "false", "wrong", "missed", "late", "invalid", "skipped")
_HEAD = (
    f"{'':26}{'runs':>6}{''.join(f'{name:>9}' for name in _COLUMNS)}"
    f"{'wordy':>9}{'median s':>10}{'longest s':>11}"
)


def counted(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each program and seed. If a run was repeated, only the repetition counts."""
    last: dict[tuple[str, int], Row] = {}
    for row in rows:
        key = (row["name"], row["seed"])
        if key not in last or row["alone"] or not last[key]["alone"]:
            last[key] = row
    return list(last.values())


def _line(title: str, rows: Sequence[Row]) -> str:
    outcomes = [sum(row["outcome"] == name for row in rows) for name in _COLUMNS]
    wordy = sum(row.get("opened", 0) > 1 or row.get("closed", 0) > 1 for row in rows)
    seconds = [row["seconds"] for row in rows if row.get("seconds") is not None]
    times = f"{statistics.median(seconds):10.0f}{max(seconds):11.0f}" if seconds else f"{'–':>10}{'–':>11}"
    counts = "".join(f"{count or '·':>9}" for count in [*outcomes, wordy])
    return f"{title:26}{len(rows):6}{counts}{times}"


def _by_family(rows: Sequence[Row]) -> list[str]:
    families = sorted({row["family"] for row in rows})
    lines = [_line(f"  {name}", [row for row in rows if row["family"] == name]) for name in families]
    return [*lines, _line("  all", rows)]


def tables(rows: Iterable[Row]) -> str:
    """Return tables by family and a list of the results that are not right.

    Frozen programs have separate tables.
    """
    known = counted(rows)
    lines = []
    for frozen, title in ((False, "development"), (True, "frozen")):
        for healthy, kind in ((True, "healthy"), (False, "failing")):
            part = [row for row in known if row["frozen"] == frozen and row["healthy"] == healthy]
            if part:
                lines += ["", f"{kind}, {title}", _HEAD, *_by_family(part)]
    repeated = [row for row in known if row["alone"] and row["outcome"] == "right"]
    odd = [row for row in known if row["outcome"] not in ("right", "skipped")]
    lines += ["", *(f"{row['name']} seed {row['seed']}: {row['outcome']}, {row['why']}" for row in odd)]
    lines += [f"{row['name']} seed {row['seed']}: right when it was repeated alone" for row in repeated]
    lines += ["", *_sums(known)]
    return "\n".join(lines).strip("\n")


def _sums(known: Sequence[Row]) -> list[str]:
    """Return the two main results: the false alarms, and the share of right results for failing programs."""
    ran = [row for row in known if row["outcome"] not in ("skipped", "invalid")]
    healthy, failing = ([row for row in ran if row["healthy"] is kind] for kind in (True, False))
    lines = []
    if healthy:
        lines.append(
            f"{sum(row['outcome'] == 'false' for row in healthy)} of {len(healthy)} healthy runs "
            "caused a false alarm"
        )
    if failing:
        right = sum(row["outcome"] == "right" for row in failing)
        lines.append(
            f"{right} of {len(failing)} failing runs were reported correctly ({right / len(failing):.0%})"
        )
    return lines
