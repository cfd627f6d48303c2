"""The boards: all runs, and one run. Their addresses (uid) never change, so links to them hold."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from stallwatch_dashboard import theme
from stallwatch_dashboard.grafana.panels import SOURCE, curves, figure, rows, states

RUNS, RUN = "stallwatch-runs", "stallwatch-run"
TAG = "stallwatch"  #: of boards, and of the annotations that incidents become


def boards() -> dict[str, dict[str, Any]]:
    """Every board by its uid, as Grafana's JSON model."""
    return {RUNS: _json(_runs()), RUN: _json(_run())}


def _json(board: builders.Dashboard) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    for number, panel in enumerate(plain["panels"], 1):
        panel["id"] = number  # else Grafana numbers them anew, and links to a panel lead nowhere
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


def _runs() -> builders.Dashboard:
    board = _board(RUNS, "Stallwatch: runs", "Every run, those that need someone first.")
    return (
        board.with_panel(
            figure(
                "Open incidents",
                "Stalls and findings that are not resolved.",
                "sum(stallwatch_incident_open) or vector(0)",
                limits={1: theme.VERMILLION},
            )
        )
        .with_panel(
            figure(
                "Runs under way",
                "Runs whose agent answers and that have not ended.",
                "count(count by (run) (stallwatch_run_info) unless on (run) stallwatch_end_timestamp_seconds)"
                " or vector(0)",
            )
        )
        .with_panel(
            figure(
                "Agents gone",
                "Targets of the job that did not answer the last scrape.",
                'count(up{job="stallwatch"} == 0) or vector(0)',
                limits={1: theme.ORANGE},
            )
        )
        .with_panel(
            figure(
                "Time lost to stalls",
                "Of all runs, in the time shown.",
                "sum(increase(stallwatch_stalled_seconds_total[$__range]))",
                unit="s",
            )
        )
        .with_panel(
            rows(
                "Open incidents",
                "One row an incident; the rule's name leads to its page.",
                "max by (run, rule, severity) (stallwatch_incident_open == 1)",
                links={"The run": f"/d/{RUN}?var-run=${{__data.fields.run}}"},
            )
        )
        .with_panel(
            curves(
                "Quiet time against its threshold",
                "Above 1 the run counts as stalled.",
                {
                    "{{run}}": "run:stallwatch_seconds_since_progress:min"
                    " / on (run) run:stallwatch_stall_threshold_seconds:current"
                },
                unit="percentunit",
            )
        )
        .with_panel(
            curves("Steps", "Steps per second.", {"{{run}}": "run:stallwatch_steps:rate5m"}, unit="ops")
        )
        .with_panel(
            curves(
                "Step time against the hour's own mean",
                "Above 1.5 the run became slow.",
                {
                    "{{run}}": "run:stallwatch_step_duration_seconds:mean5m"
                    " / on (run) run:stallwatch_step_duration_seconds:mean1h"
                },
            )
        )
        .with_panel(
            curves(
                "Trace-cache invalidations per step",
                "Harmless while steps advance; see whether it climbs when they do not.",
                {"{{run}}": "run:stallwatch_trace_cache_invalidations_per_step:ratio5m"},
            )
        )
    )


def _run() -> builders.Dashboard:
    board = _board(RUN, "Stallwatch: run", "One run: is it still training, and if not, since when and where?")
    chosen = (
        builders.QueryVariable("run")
        .label("Run")
        .datasource(SOURCE)
        .query("label_values(stallwatch_run_info, run)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_DESC)
    )
    return (
        board.with_variable(chosen)
        .with_panel(figure("Step", "The last optimizer step.", 'max(stallwatch_step{run="$run"})'))
        .with_panel(
            figure(
                "Time left",
                "At the pace of the last five minutes.",
                '(max(stallwatch_target_steps{run="$run"}) - max(stallwatch_step{run="$run"}))'
                ' / max(run:stallwatch_steps:rate5m{run="$run"})',
                unit="s",
            )
        )
        .with_panel(
            figure(
                "No progress for",
                "Against the threshold that the run's own phases taught.",
                'max(run:stallwatch_seconds_since_progress:min{run="$run"})',
                unit="s",
            )
        )
        .with_panel(
            figure(
                "Open incidents",
                "Stalls and findings that are not resolved.",
                'sum(stallwatch_incident_open{run="$run"}) or vector(0)',
                limits={1: theme.VERMILLION},
            )
        )
        .with_panel(
            curves(
                "Trace-cache invalidations against progress",
                "While both climb it is noise or a cost; when only one does it is trouble.",
                {
                    "step": 'max(stallwatch_step{run="$run"})',
                    "invalidations": 'max(stallwatch_trace_cache_invalidations_total{run="$run"})',
                },
            )
        )
        .with_panel(
            curves(
                "Step time and stall threshold",
                "The threshold is that of the phase the run is in.",
                {
                    "step": 'run:stallwatch_step_duration_seconds:mean5m{run="$run"}',
                    "threshold": 'run:stallwatch_stall_threshold_seconds:current{run="$run"}',
                },
                unit="s",
            )
        )
        .with_panel(curves("Loss", "By rank.", {"rank {{rank}}": 'stallwatch_loss{run="$run"}'}))
        .with_panel(
            curves("Gradient norm", "By rank.", {"rank {{rank}}": 'stallwatch_grad_norm{run="$run"}'})
        )
        .with_panel(
            curves(
                "Accelerator memory",
                "Allocated, by rank.",
                {"rank {{rank}}": 'stallwatch_memory_allocated_bytes{run="$run"}'},
                unit="bytes",
            )
        )
        .with_panel(
            curves(
                "Host memory",
                "Of the command and all it started, and what it may use.",
                {
                    "used": 'stallwatch_host_memory_bytes{run="$run"}',
                    "limit": 'stallwatch_host_memory_limit_bytes{run="$run"}',
                },
                unit="bytes",
            )
        )
        .with_panel(
            curves(
                "Steps behind the first rank",
                "The straggler stands above the others.",
                {
                    "rank {{rank}}": 'scalar(max(stallwatch_rank_step{run="$run"}))'
                    ' - stallwatch_rank_step{run="$run"}'
                },
            )
        )
        .with_panel(
            curves(
                "Warnings and log lines",
                "Per second.",
                {
                    "warnings": 'sum(rate(stallwatch_warnings_total{run="$run"}[5m]))',
                    "lines": 'sum(rate(stallwatch_log_lines_total{run="$run"}[5m]))',
                },
                unit="ops",
            )
        )
        .with_panel(
            states(
                "Phases", "What the run was doing.", 'stallwatch_phase{run="$run"}', "{{stallwatch_phase}}"
            )
        )
        .with_panel(
            rows(
                "Rules that fired",
                "How often each rule of the catalogue matched.",
                'sum by (rule) (stallwatch_rule_matches_total{run="$run"})',
            )
        )
    )


def queries(board: dict[str, Any]) -> list[str]:
    """Every PromQL expression of a board."""
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
