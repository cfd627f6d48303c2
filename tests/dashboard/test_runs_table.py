"""Data for the table of runs: texts, sort values, and search fields."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stallwatch_dashboard import formats
from stallwatch_dashboard.data.overview import RunRow
from stallwatch_dashboard.pages.incident import incident_table
from stallwatch_dashboard.pages.runs_table import COLUMNS, ORDERS, table
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.incident import Incident
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.stacks.records import StackGroup, StallStacks

NOW = 1000.0


#: a run with content in each column
FULL = RunRow(
    "full",
    "training",
    "node1",
    step=5,
    total_steps=10,
    loss=1.0,
    losses=(2.0, 1.0),
    step_seconds=1.0,
    baseline_seconds=1.0,
    stepping_seconds=5.0,
    stalled_seconds=1.0,
    invalidations=5.0,
    memory_bytes=1.0,
    host_memory_bytes=1.0,
    host_memory_limit_bytes=2.0,
    phase="train",
    started_at=10.0,
    cause="cuda-oom",
)


def cells_of(row: RunRow) -> dict[str, tuple[str, float | None]]:
    """Return for each column the text and the sort value of the run's cell."""
    whole = table([row, FULL], Reader(now=NOW), {})
    json.dumps(whole, allow_nan=False)  # browsers cannot parse NaN
    shown, _ = whole["rows"]
    return {
        column.name: both
        for column, both in zip(COLUMNS, zip(shown["cells"], shown["values"], strict=True), strict=True)
    }


def found(row: RunRow) -> Any:
    return table([row], Reader(now=NOW), {})["rows"][0]["found"]


def test_each_sort_order_belongs_to_one_column() -> None:
    orders = [column.order for column in COLUMNS if column.order]
    assert len(set(orders)) == len(orders) and set(ORDERS) <= set(orders)


def test_empty_columns_are_omitted() -> None:
    rows = [RunRow("r", "training", step=5, total_steps=10), RunRow("s", "training", loss=1.0)]
    whole = table(rows, Reader(now=NOW), {})
    assert [column["title"] for column in whole["columns"]] == ["State", "Run", "Step", "of", "Loss"]
    assert [row["cells"][1:] for row in whole["rows"]] == [["r", "5", "10", "–"], ["s", "–", "–", "1"]]
    assert [name for name, _ in whole["orders"]] == ["urgency", "run", "loss"]


def test_columns_up_to_the_duration_fit_into_1280_pixels() -> None:
    names = [column.name for column in COLUMNS]
    useful = COLUMNS[: names.index("duration") + 1]
    assert (
        sum(column.width for column in useful) <= 1280 - 98
    )  # the page has margins, and the table has a border


def test_run_without_values_has_dashes() -> None:
    cells = cells_of(RunRow("new", "starting"))
    numbers = {column.name for column in COLUMNS if column.field}
    assert {cells[name] for name in numbers} == {(formats.NOTHING, None)}
    assert cells["state"] == ("◌ starting", None) and cells["loss_course"] == ("", None)


def test_values_are_formatted_and_sorted_numerically() -> None:
    row = RunRow("r", "training", step=50, total_steps=1000, step_seconds=2.0, baseline_seconds=1.0)
    cells = cells_of(row)
    assert cells["total"] == ("1,000", 1000) and cells["against_baseline"] == ("× 2.00", 2.0)
    assert cells["time_left"] == ("31 min 40 s", 1900.0)
    assert cells_of(RunRow("r", "training", loss=math.nan))["loss"] == ("NaN", None)
    assert cells_of(RunRow("r", "training", stalled_seconds=0.0))["lost_to_stalls"] == (formats.NOTHING, 0.0)


def test_phase_mentions_a_stall() -> None:
    assert cells_of(RunRow("r", "training", phase="save"))["phase"][0] == "saving"
    assert cells_of(RunRow("r", "stalled", phase="save"))["phase"][0] == "saving, stalled"
    assert cells_of(RunRow("r", "stalled"))["phase"][0] == formats.NOTHING


def test_early_finish_shows_its_step() -> None:
    states = [
        cells_of(RunRow("r", state, step=step, total_steps=100))["state"][0]  # type: ignore[arg-type]
        for state, step in (("finished", 60), ("finished", 99), ("finished", 100), ("failed", 60))
    ]
    # Steps may count from 0, so 99 is the last one of 100.
    assert states == ["✔ finished (60%)", "✔ finished", "✔ finished", "✖ failed"]


def test_loss_curve_is_scaled_to_percent() -> None:
    assert cells_of(RunRow("r", "training", losses=(3.0, 1.0, 1.5)))["loss_course"][0] == "100 0 25"
    assert cells_of(RunRow("r", "training", losses=(2.0, 2.0)))["loss_course"][0] == "50 50"


def test_search_text_contains_name_host_command_and_incidents(
    make_incident: Callable[..., Incident],
) -> None:
    row = RunRow("r7", "stalled", "node2", ("torchrun", "sft.py"), open_incidents=(make_incident(),))
    words = ["r7", "node2", "silent-hang-no-error", "torchrun", "sft.py", "silent-hang-no-error"]
    assert found(row).split() == words
    assert len(found(RunRow("r", "training", command=("long ",) * 5000))) == 2000


def test_tables_show_an_unknown_exception(make_incident: Callable[..., Incident]) -> None:
    for exception, shown in (("ValueError: bad (t.py:8)",) * 2, ("", "a cause that no rule matches")):
        died = make_incident(kind="ended", rule="unknown-failure", exception=exception)
        assert shown in incident_table([died], Reader(now=NOW), {}).iloc[0].tolist()
        assert cells_of(RunRow("r", "degraded", open_incidents=(died,)))["open_incidents"][0] == shown


def test_both_tables_show_rank_and_location_of_a_stall(make_incident: Callable[..., Incident]) -> None:
    stacks = StallStacks(NOW, 0.1, [StackGroup([1], "code", place="train.py:30 in main")], odd=[1])
    pages = load_catalogue().pages
    stall = make_incident(kind="stall", rule="silent-hang-no-error", stacks=stacks)
    title = f"{pages[stall.rule].title}: rank 1 holds up the run at train.py:30 in main"
    row = RunRow("r", "stalled", open_incidents=(stall,))
    (shown,) = table([row], Reader(now=NOW), pages)["rows"]
    assert "rank 1 at train.py:30 in main" in shown["cells"] and title in shown["found"]
    alone = make_incident(kind="stall", rule="silent-hang-no-error", stacks=replace(stacks, odd=[]))
    (shown,) = table([RunRow("r", "stalled", open_incidents=(alone,))], Reader(now=NOW), pages)["rows"]
    assert "at train.py:30 in main" in shown["cells"]
    assert title in incident_table([stall], Reader(now=NOW), pages).iloc[0].tolist()
