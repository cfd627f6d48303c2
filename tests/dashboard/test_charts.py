"""Content of the charts, which must not contain anything active."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable

import msgspec
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from stallwatch_dashboard.charts.base import Drawing, Span, milliseconds
from stallwatch_dashboard.charts.by_step import compared, of_diagnosis
from stallwatch_dashboard.charts.lag import blamed_hosts, lag, silent_hosts
from stallwatch_dashboard.charts.run import BOARD, OPTIONAL, ranks_of_host, top
from stallwatch_dashboard.data.frames import COLUMNS, RunFrames
from stallwatch_dashboard.theme import DARK, LIGHT, Look
from stallwatch_dashboard.words import Reader
from stallwatch_exporter.incident import Incident
from stallwatch_rules.records import Diagnosis, Primary, Series
from stallwatch_rules.stacks.records import StackGroup, StallStacks

NOW = 1_795_000_000.0
LOOK = LIGHT
CHARTS = {chart.key: chart for chart in BOARD}


def frame(*values: float, rank: int | None = None, every: float = 10.0) -> pd.DataFrame:
    rows = [(rank, NOW - 100 + every * n, value) for n, value in enumerate(values)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


@pytest.fixture
def stalled() -> RunFrames:
    return RunFrames(
        steps=frame(1, 2, 3, 3, 3, 3),
        loss=pd.concat([frame(2.0, 1.9, rank=0), frame(2.1, float("nan"), 1.8, rank=1)]),
        step_seconds=frame(10, 11, 12),
        threshold=frame(1800, 30),
        memory=frame(3 * 1024**3, rank=0),
        memory_kind="allocated",
        invalidations=frame(0, 1, 5, 20, 50, 90),
        warnings=frame(1, 2),
        grad_norm=frame(1.0, 1.1, rank=0),
        learning_rate=frame(1e-4, 1e-5),
        rank_steps=pd.concat([frame(1, 2, 3, rank=0), frame(1, 1, 1, rank=1)]),
        phases=((NOW - 100, "init"), (NOW - 90, "train"), (NOW - 60, "save")),
        last_step_at=NOW - 50,
    )


def checked(drawing: Drawing) -> go.Figure:
    """Convert a drawing to Plotly's own objects, which refuse keys outside its schema."""
    return go.Figure(drawing.data, drawing.layout)


def draw(key: str, found: RunFrames, *incidents: Incident, live: bool = True, look: Look = LOOK) -> go.Figure:
    span = Span(NOW - 100, NOW, live)
    return checked(CHARTS[key].draw(found, incidents, span, look, Reader("en").say))


@pytest.mark.parametrize("key", CHARTS)
@pytest.mark.parametrize("dark", [False, True])
def test_charts_keep_their_zoom_and_share_a_time_range(key: str, dark: bool, stalled: RunFrames) -> None:
    chart = draw(key, stalled, look=DARK if dark else LIGHT)
    assert chart.layout.uirevision == "keep"
    # Plotly fails if axes appear or disappear during a transition
    assert chart.layout.transition.duration is None
    assert all(axis.fixedrange for axis in chart.select_yaxes())
    assert list(chart.layout.xaxis.range) == [milliseconds(NOW - 100), milliseconds(NOW)]
    assert chart.data


def test_distant_threshold_is_mentioned_in_text() -> None:
    """A drawn threshold would flatten the steps."""
    steps = RunFrames(step_seconds=frame(0.1, 0.12), threshold=frame(600, 600))
    chart = draw("step_time", steps, live=False)
    assert [note.text for note in chart.layout.annotations] == [
        "stall threshold 10 min: above the range of this chart"
    ]
    chinese = CHARTS["step_time"].draw(steps, (), Span(NOW - 100, NOW), LOOK, Reader("zh").say)
    assert [note["text"] for note in chinese.layout["annotations"]] == ["卡住阈值 10 分钟：超出图的上边界"]
    near = draw("step_time", RunFrames(step_seconds=frame(0.1, 0.12), threshold=frame(1, 1)), live=False)
    assert not near.layout.annotations and len(near.data) == 2


@pytest.mark.parametrize("key", CHARTS)
def test_charts_without_data_are_empty(key: str) -> None:
    assert not CHARTS[key].drawable(RunFrames())
    assert not draw(key, RunFrames()).data


def test_run_without_invalidations_has_no_chart_of_them(stalled: RunFrames) -> None:
    assert CHARTS["progress"].drawable(stalled) and "progress" in OPTIONAL
    assert not CHARTS["progress"].drawable(RunFrames(steps=stalled.steps, loss=stalled.loss))


def test_steps_and_invalidations_share_one_chart(stalled: RunFrames) -> None:
    """Two lines on two axes differ in more than color."""
    steps, invalidations = draw("progress", stalled).data
    assert (steps.yaxis, invalidations.yaxis) == ("y", "y2")
    assert steps.line.dash != invalidations.line.dash and steps.line.color != invalidations.line.color
    assert list(steps.y)[-1] == 3 and list(invalidations.y)[-1] == 90


def test_unfinished_step_grows_beyond_the_threshold(stalled: RunFrames) -> None:
    traces = {trace.name: trace for trace in draw("step_time", stalled).data}
    assert list(traces["since the last step"].y) == [0, 50]
    assert "since the last step" not in {t.name for t in draw("step_time", stalled, live=False).data}


def test_large_initial_threshold_does_not_flatten_the_steps(stalled: RunFrames) -> None:
    assert top(stalled, 0.0) == pytest.approx(33.0)
    beginning = RunFrames(step_seconds=frame(1.0), threshold=frame(1800.0))
    assert top(beginning, 0.0) == pytest.approx(1.1)


def test_each_rank_is_a_line_and_nan_is_a_gap(stalled: RunFrames) -> None:
    zero, one = draw("loss", stalled).data
    assert (zero.name, one.name) == ("rank 0", "rank 1")
    assert pd.isna(list(one.y)[1]) and not one.connectgaps


def test_chart_shows_the_number_of_omitted_ranks() -> None:
    many = RunFrames(loss=pd.concat([frame(float(rank), rank=rank) for rank in range(64)]))
    chart = draw("loss", many)
    assert [trace.name for trace in chart.data] == ["rank 0", "rank 32", "rank 63 (3 of 64 ranks shown)"]
    few = RunFrames(loss=pd.concat([frame(float(rank), rank=rank) for rank in range(8)]))
    assert draw("loss", few).data[-1].name == "rank 7"


def test_incidents_are_bands_on_every_chart(
    stalled: RunFrames, make_incident: Callable[..., Incident]
) -> None:
    still_open = make_incident(opened_at=NOW - 20)
    over = make_incident(
        kind="finding",
        rule="<b>odd</b>",
        severity="warning",
        opened_at=NOW - 80,
        resolved_at=NOW - 60,
        episode=2,
    )
    for key in CHARTS:
        layout = draw(key, stalled, still_open, over).layout
        assert [(shape.x0, shape.x1) for shape in layout.shapes] == [
            (milliseconds(NOW - 50), milliseconds(NOW)),  # from the last step on, as the incident's page does
            (milliseconds(NOW - 80), milliseconds(NOW - 60)),
        ]
        assert [note.text for note in layout.annotations] == ["&lt;b&gt;odd&lt;/b&gt;", "stall"]


@pytest.mark.parametrize(
    ("between", "names"),
    [
        (60.0, ["zero3-trace-cache-invalidated", "stall"]),
        (20.0, ["zero3-trace-…", "stall"]),
        (4.0, ["stall"]),
        (0.0, ["stall"]),
    ],
)
def test_labels_of_bands_do_not_overlap(
    stalled: RunFrames, make_incident: Callable[..., Incident], between: float, names: list[str]
) -> None:
    stall = make_incident(opened_at=NOW - 20)  # the stall began with the last step, 30 s before
    before = make_incident(
        kind="finding",
        rule="zero3-trace-cache-invalidated",
        severity="warning",
        opened_at=NOW - 50 - between,
    )
    notes = draw("loss", stalled, stall, before).layout.annotations
    assert [note.text for note in notes] == names


@pytest.mark.parametrize(("before_end", "anchor"), [(60.0, "left"), (6.0, "right")])
def test_label_near_the_right_edge_is_not_cut_off(
    stalled: RunFrames, make_incident: Callable[..., Incident], before_end: float, anchor: str
) -> None:
    late = make_incident(kind="finding", rule="gloo-collective-timeout", opened_at=NOW - before_end)
    (note,) = draw("loss", stalled, late).layout.annotations
    assert (note.xanchor, note.x) == (anchor, milliseconds(NOW if anchor == "right" else NOW - before_end))


def test_figures_are_serialized_as_json(stalled: RunFrames) -> None:
    for key in CHARTS:
        drawing = CHARTS[key].draw(stalled, (), Span(NOW - 100, NOW), LOOK, Reader("en").say)
        report = json.loads(drawing.to_json())
        assert report["data"] and report["layout"]["xaxis"]["range"]


def test_arrays_are_serialized_as_bytes_including_nan() -> None:
    values = np.array([[1.5, np.nan], [-2.0, np.inf]], dtype="float32")
    report = json.loads(Drawing([{"z": values, "zmin": np.float64(0.5)}]).to_json())["data"][0]
    assert (report["z"]["dtype"], report["z"]["shape"], report["zmin"]) == ("f4", "2, 2", 0.5)
    back = np.frombuffer(base64.b64decode(report["z"]["bdata"]), "<f4").reshape(2, 2)
    np.testing.assert_array_equal(back, values)


def test_phase_lasts_until_the_next_phase(stalled: RunFrames) -> None:
    found = {trace.name: trace for trace in draw("phases", stalled).data}
    assert list(found) == ["training", "starting up", "saving"]
    assert found["training"].base[0] == milliseconds(NOW - 90) and found["training"].x[0] == 30_000
    assert found["saving"].x[0] == 60_000


def test_phase_ends_when_a_stall_begins(stalled: RunFrames, make_incident: Callable[..., Incident]) -> None:
    stall = make_incident(opened_at=NOW - 20)
    *_, last = draw("phases", stalled, stall, make_incident(kind="finding", rule="slow")).data  # drawn on top
    assert (last.name, list(last.base), list(last.x)) == ("stalled", [milliseconds(NOW - 50)], [50_000])
    over = make_incident(opened_at=NOW - 20, status="resolved", resolved_at=NOW - 10)
    *_, last = draw("phases", stalled, over).data
    assert list(last.x) == [40_000]


def test_straggler_is_visible_and_a_late_scrape_is_not() -> None:
    steps = pd.concat([frame(*range(100), rank=0, every=1.0), frame(*range(100), rank=2, every=1.0)])
    late = frame(*range(100), rank=1, every=1.0).assign(v=lambda rows: rows["v"] // 2)
    behind = lag(pd.concat([steps, late]), moments=10)
    assert behind.shape == (3, 10)
    assert behind.loc[0].max() == 0 and behind.loc[2].max() == 0
    assert behind.loc[1].is_monotonic_increasing and behind.loc[1].iloc[-1] == 50
    # ranks that are scraped one after the other
    shifted = steps.assign(t=steps["t"] + steps["rank"].astype(float) / 100)
    assert lag(shifted, moments=10).to_numpy().max() <= 1


def test_late_rank_is_not_behind_before_its_first_point() -> None:
    steps = pd.concat([frame(1, 2, 3, 4, rank=0), frame(4, rank=1).assign(t=NOW - 70)])
    behind = lag(steps, moments=4)
    assert behind.loc[1].isna().sum() == 3 and behind.loc[1].iloc[-1] == 0


def test_gaps_without_data_are_grey(stalled: RunFrames) -> None:
    span = Span(NOW - 100, NOW, live=True, seen_at=NOW - 40)
    chart = checked(CHARTS["step_time"].draw(stalled, (), span, LOOK, Reader("en").say))
    (grey,) = chart.layout.shapes
    assert (grey.x0, grey.x1) == (milliseconds(NOW - 40), milliseconds(NOW))
    # the time of the next step is unknown
    assert "since the last step" not in [trace.name for trace in chart.data]


def test_labels_of_incidents_are_links(stalled: RunFrames, make_incident: Callable[..., Incident]) -> None:
    (name,) = draw("loss", stalled, make_incident()).layout.annotations
    assert name.name == "stuck/stall/silent-hang-no-error/1" and name.captureevents


def test_two_runs_are_compared_by_step() -> None:
    own = RunFrames(steps=frame(10, 20, 30), loss=frame(3.0, 2.0, 1.0, rank=0))
    other = RunFrames(steps=frame(10, 20, every=50), loss=frame(4.0, 3.5, rank=1, every=50))
    ((key, _, drawing),) = compared(("a<b>", "b"), own, other, LOOK, Reader("en").say)
    chart = checked(drawing)
    assert key == "compared-loss"
    assert [(list(t.x), list(t.y), t.line.dash) for t in chart.data] == [
        ([10, 20, 30], [3.0, 2.0, 1.0], "solid"),
        ([10, 20], [4.0, 3.5], "dash"),
    ]
    assert chart.data[0].name == "a&lt;b&gt;" and list(chart.layout.xaxis.range) == [0, 30]
    assert compared(("a", "b"), own, RunFrames(), LOOK, Reader("en").say) == []


def test_charts_of_a_failed_run_mark_the_step_of_its_cause() -> None:
    loss = Series("loss", 0, [1, 2, 3], [1.0, None, 0.5])
    primary = Primary("r", "t", "cause", "fatal", 0.9, 0, "a.log", 7, None, 2, [], {}, "", [])
    found = Diagnosis("failed", primary, series=[loss])
    ((_, _, drawing),) = of_diagnosis(found, LOOK, Reader("en").say)
    chart = checked(drawing)
    assert np.array_equal(chart.data[0].y, [1.0, np.nan, 0.5], equal_nan=True)
    assert [(mark.x0, mark.x1) for mark in chart.layout.shapes] == [(2, 2)]


def test_chart_of_many_ranks_names_the_blamed_rank_and_the_number_of_ranks() -> None:
    ranks = [*range(15), 17]
    lines = [Series("step_seconds", rank, [1, 2], [1.0, 1.0], of_ranks=64) for rank in ranks]
    primary = Primary("r", "t", "cause", "fatal", 0.9, 17, "a.log", 7, None, 2, [], {}, "", [])
    ((_, title, drawing),) = of_diagnosis(Diagnosis("failed", primary, series=lines), LOOK, Reader("en").say)
    chart = checked(drawing)
    assert "16 of 64 ranks" in title and chart.layout.yaxis.ticksuffix == " s"
    assert [trace.name for trace in chart.data if trace.showlegend] == ["rank 17"]
    assert chart.data[-1].line.color == LOOK.blue and len(chart.data) == 16  # no other line covers it
    few = Diagnosis("failed", primary, series=lines[:8])
    ((_, _, drawing),) = of_diagnosis(few, LOOK, Reader("en").say)
    assert all(trace["showlegend"] for trace in drawing.data)


def test_chart_of_a_log_without_steps_uses_epochs() -> None:
    epochs = Diagnosis("healthy", series=[Series("loss", 0, [0.5, 1.0], [1.0, 0.5], by="epoch")])
    ((_, _, drawing),) = of_diagnosis(epochs, LOOK, Reader("en").say)
    assert checked(drawing).layout.xaxis.title.text == "Epoch"


def hosts_of_two(ranks: int = 16) -> RunFrames:
    """Return two hosts with eight ranks each; rank 11 stops at step 2."""
    lines = [frame(1, 2, 2 if rank == 11 else 3, 2 if rank == 11 else 4, rank=rank) for rank in range(ranks)]
    return RunFrames(
        rank_steps=pd.concat(lines),
        hosts={rank: f"n{rank // 8 + 1}" for rank in range(ranks)},
        seen_at={"n1": NOW, "n2": NOW - 90},
    )


def test_ranks_of_several_hosts_are_folded_by_host() -> None:
    found = hosts_of_two()
    chart = draw("lag", found)
    (heat,) = chart.data
    assert heat.z.shape[0] == 2 and list(np.nanmax(heat.z, axis=1)) == [0, 2]
    assert list(chart.layout.yaxis.ticktext) == ["n1", "? n2"]
    alone = draw("lag", RunFrames(rank_steps=found.rank_steps))
    assert alone.data[0].z.shape[0] == 16 and alone.layout.yaxis.ticktext[0] == "rank 0"


def test_ranks_of_the_expanded_host_have_separate_rows() -> None:
    span = Span(NOW - 100, NOW, True)
    chart = checked(ranks_of_host("n2").draw(hosts_of_two(), (), span, LOOK, Reader("en").say))
    (heat,) = chart.data
    assert [row[0] for row in heat.customdata] == [f"rank {rank}" for rank in range(8, 16)]
    assert list(np.nanmax(heat.z, axis=1)) == [0, 0, 0, 2, 0, 0, 0, 0]


def test_blamed_rank_is_framed_during_the_incident(
    make_incident: Callable[..., Incident],
) -> None:
    stacks = StallStacks(NOW - 30, 1.0, [StackGroup([11], "code")], odd=[11], why="elsewhere")
    stall = make_incident(kind="stall", opened_at=NOW - 40, threshold_seconds=20.0, stacks=stacks)
    found = hosts_of_two()
    chart = draw("lag", found, stall)
    framed = [shape for shape in chart.layout.shapes if shape.yref == "y" and not shape.fillcolor]
    assert [(shape.y0, shape.y1, shape.x0) for shape in framed] == [(0.5, 1.5, milliseconds(NOW - 60))]
    assert list(chart.layout.yaxis.ticktext) == ["n1", "▶ ? n2"]
    assert blamed_hosts([stall], found.hosts) == ["n2"]
    span = Span(NOW - 100, NOW, True)
    ranks = checked(ranks_of_host("n2").draw(found, [stall], span, LOOK, Reader("en").say))
    assert [name for name in ranks.layout.yaxis.ticktext if "▶" in name] == ["▶ ? rank 11"]
    # The band must not color the map, whose color shows how far a row is behind.
    (band,) = [shape for shape in chart.layout.shapes if shape.yref == "paper"]
    assert band.fillcolor == "rgba(0,0,0,0)"
    over = msgspec.structs.replace(stall, status="resolved", resolved_at=NOW - 10)
    assert blamed_hosts([over], found.hosts) == []
    assert [shape.x1 for shape in draw("lag", found, over).layout.shapes if not shape.fillcolor] == [
        milliseconds(NOW - 10)
    ]


def test_silent_host_is_grey_since_its_last_report(make_incident: Callable[..., Incident]) -> None:
    found = hosts_of_two()
    (grey,) = [shape for shape in draw("lag", found).layout.shapes if shape.fillcolor == LOOK.grey]
    assert (grey.y0, grey.y1, grey.x0) == (0.5, 1.5, milliseconds(NOW - 90))
    assert silent_hosts(["n1", "n2"], found, ()) == ["n2"]
    named = make_incident(kind="stall", stacks=StallStacks(NOW, 1.0, silent=["n1", "n7"]))
    assert silent_hosts(["n1", "n2"], found, [named]) == ["n1", "n2"]


def test_labels_of_a_thousand_ranks_do_not_overlap(
    make_incident: Callable[..., Incident],
) -> None:
    lines = [frame(1, 2, rank=rank) for rank in range(1024)]
    found = RunFrames(rank_steps=pd.concat(lines), hosts={rank: f"n{rank // 8 + 1}" for rank in range(1024)})
    stall = make_incident(kind="stall", rank=611, opened_at=NOW - 40)
    chart = draw("lag", found, stall)
    shown = list(chart.layout.yaxis.tickvals)
    assert chart.data[0].z.shape[0] == 128 and 76 in shown and len(shown) <= 17
    assert min(b - a for a, b in itertools.pairwise(shown)) >= 8 and chart.layout.height <= 640


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ([1e-5, 1e-5, 1e-5], "tozero"),
        ([-3e-4, None, -3e-4], "tozero"),
        ([0.0, 0.0], "tozero"),
        ([None, None], "normal"),
        ([2e-5, 1e-5], "normal"),
    ],
)
def test_axes_are_readable_for_small_and_constant_values(values: list[float | None], mode: str) -> None:
    """Plotly draws a constant on an axis from 1 below to 1 above it, so that 1e-05 looks like 0."""
    steps = [float(step) for step, _ in enumerate(values)]
    found = Diagnosis("healthy", series=[Series("learning_rate", 0, steps, values)])
    numbers = [np.nan if value is None else value for value in values]
    own = RunFrames(steps=frame(*steps), loss=frame(*numbers, rank=0))
    drawings = [drawing for _, _, drawing in of_diagnosis(found, LOOK, Reader("en").say)]
    drawings += [drawing for _, _, drawing in compared(("a", "b"), own, own, LOOK, Reader("en").say)]
    axes = [checked(drawing).layout.yaxis for drawing in drawings] + [draw("loss", own).layout.yaxis]
    assert [(axis.rangemode, axis.exponentformat) for axis in axes] == [(mode, "e")] * 3


def test_axis_of_the_learning_rate_starts_at_zero() -> None:
    axis = draw("learning_rate", RunFrames(learning_rate=frame(2e-5, 1e-5, rank=0))).layout.yaxis
    assert (axis.rangemode, axis.exponentformat, axis.showexponent) == ("tozero", "e", "all")
