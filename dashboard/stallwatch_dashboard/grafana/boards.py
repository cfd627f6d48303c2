"""Build two Grafana boards: one for all runs and one for a single run.

The UIDs of the boards never change, so links to the boards stay valid. `panels.json` describes the panels.
The boards are built with grafana-foundation-sdk for the schema of Grafana 11.4. Later versions of Grafana
can also read this schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import msgspec
from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from stallwatch_dashboard import theme
from stallwatch_rules.decoding import from_json

RUNS, RUN = "stallwatch-runs", "stallwatch-run"
TAG = "stallwatch"  #: tag of the boards, and of the annotations for incidents

#: The data source that the user selects at the top of the board.
_SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: For each kind of panel: its builder, its width in 24ths of the board's width, and its height in rows.
_KINDS: dict[str, tuple[Any, int, int]] = {
    "figure": (stat, 6, 4),
    "curves": (timeseries, 12, 8),
    "rows": (table, 24, 9),
    "states": (statetimeline, 24, 6),
}


class _Panel(msgspec.Struct, forbid_unknown_fields=True):
    kind: str  #: "figure": one number; "curves": lines; "rows": a row for each series; "states": a band
    title: str
    about: str
    query: str = ""  #: PromQL
    queries: dict[str, str] = {}  #: PromQL queries of curves, by legend text
    legend: str = ""
    unit: str = ""
    limits: dict[str, str] = {}  #: colors of a figure (names in `theme`), by the lowest value with the color
    links: dict[str, str] = {}


def boards() -> dict[str, dict[str, Any]]:
    """Return the boards, keyed by UID. A board is a dict in Grafana's JSON model."""
    path = Path(__file__).with_name("panels.json")
    panels = from_json(path.read_bytes(), dict[str, list[_Panel]])
    runs = _board(RUNS, "Stallwatch: runs", "All runs. Runs that need attention come first.")
    run = _board(
        RUN,
        "Stallwatch: run",
        "One run: whether it is still training, and if not, when and where it stopped.",
    )
    chosen = (
        builders.QueryVariable("run")
        .label("Run")
        .datasource(_SOURCE)
        .query("label_values(stallwatch_run_info, run)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_DESC)
    )
    return {RUNS: _json(runs, panels["runs"]), RUN: _json(run.with_variable(chosen), panels["run"])}


def _json(board: builders.Dashboard, panels: list[_Panel]) -> dict[str, Any]:
    for panel in panels:
        board = board.with_panel(_panel(panel))
    plain: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    for number, model in enumerate(plain["panels"], 1):
        model["id"] = number  # otherwise Grafana renumbers the panels, and links to a panel break
    return plain


def _board(uid: str, title: str, about: str) -> builders.Dashboard:
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(about)
        .tags([TAG])
        .refresh("15s")
        .time("now-3h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .annotation(
            builders.AnnotationQuery()
            .name("Incidents")
            .datasource(models.DataSourceRef(type_val="datasource", uid="grafana"))
            .enable(True)
            .icon_color(theme.VERMILLION)
            .target(builders.AnnotationTarget().limit(100).match_any(False).tags([TAG]).type("tags"))
        )
    )


def _panel(panel_spec: _Panel) -> Any:
    builder, width, height = _KINDS[panel_spec.kind]
    panel = builder.Panel().title(panel_spec.title).description(panel_spec.about).datasource(_SOURCE)
    panel = panel.span(width).height(height)
    if panel_spec.kind in ("figure", "curves"):
        panel = panel.unit(panel_spec.unit or "short")
    if panel_spec.kind == "figure":
        steps = [models.Threshold(value=None, color=theme.BLUE)]  # the lowest level has no lower bound
        for value, colour in panel_spec.limits.items():
            steps.append(models.Threshold(value=int(value), color=getattr(theme, colour)))
        limits = builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        panel = panel.graph_mode(common_models.BigValueGraphMode.NONE).thresholds(limits)
        return panel.with_target(_query(panel_spec.query, "").instant())
    if panel_spec.kind == "states":
        return panel.with_target(_query(panel_spec.query, panel_spec.legend).range())
    if panel_spec.kind == "rows":
        in_table = _query(panel_spec.query, "").instant().format(prometheus_models.PromQueryFormat.TABLE)
        without_time = {"excludeByName": {"Time": True}}
        organized = models.DataTransformerConfig(id_val="organize", options=without_time)
        panel = panel.with_target(in_table).with_transformation(organized)
        links = panel_spec.links.items()
        return panel.data_links([builders.DashboardLink(name).url(address) for name, address in links])
    panel = panel.line_width(1).fill_opacity(0).show_points(common_models.VisibilityMode.NEVER)
    panel = panel.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    for letter, (legend, query) in zip(ascii_uppercase, panel_spec.queries.items(), strict=False):
        panel = panel.with_target(_query(query, legend).range().ref_id(letter))
    return panel


def _query(query: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id("A").expr(query).legend_format(legend or "__auto")
