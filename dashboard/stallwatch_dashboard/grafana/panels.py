"""Panels of the boards: what is drawn, in which unit, from which queries.

Built with grafana-foundation-sdk for Grafana 11.4, whose schema later versions read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from stallwatch_dashboard import theme

#: The data source that the reader chose at the top of the board.
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
HALF, WHOLE = 12, 24  #: of the board's 24 columns


def curves(title: str, about: str, queries: Mapping[str, str], *, unit: str = "short") -> Any:
    """Lines over time; `queries` are PromQL by legend."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .span(HALF)
        .height(8)
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_models.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    )
    for letter, (legend, query) in zip(ascii_uppercase, queries.items(), strict=False):
        panel = panel.with_target(_query(query, legend).ref_id(letter))
    return panel


def figure(
    title: str, about: str, query: str, *, unit: str = "short", limits: Mapping[float, str] | None = None
) -> Any:
    """One number, coloured from each of the `limits` on; four fit into a row."""
    steps = [models.Threshold(value=None, color=theme.BLUE)]  # no value: from the bottom on
    steps += [models.Threshold(value=value, color=colour) for value, colour in (limits or {}).items()]
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .span(6)
        .height(4)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_query(query, "", instant=True))
    )


def rows(title: str, about: str, query: str, *, links: Mapping[str, str] | None = None) -> Any:
    """A table with one row a series, its labels as columns."""
    panel = (
        table.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .span(WHOLE)
        .height(9)
        .with_target(_query(query, "", instant=True).format(prometheus_models.PromQueryFormat.TABLE))
        .with_transformation(
            models.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
        )
    )
    return panel.data_links(
        [builders.DashboardLink(name).url(address) for name, address in (links or {}).items()]
    )


def states(title: str, about: str, query: str, legend: str) -> Any:
    """What was the case when: a band over time."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .span(WHOLE)
        .height(6)
        .with_target(_query(query, legend))
    )


def _query(query: str, legend: str, *, instant: bool = False) -> prometheus.Dataquery:
    told = prometheus.Dataquery().ref_id("A").expr(query).legend_format(legend or "__auto")
    return told.instant() if instant else told.range()
