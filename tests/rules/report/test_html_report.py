"""The HTML report: complete, drawn, and harmless with any log text."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_rules.locale import rendered
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.progress.curve import MOST_POINTS, thinned
from stallwatch_rules.records import Diagnosis, Place, Primary, Series, UnknownException
from stallwatch_rules.report.html import to_html
from stallwatch_rules.report.json import to_json
from stallwatch_rules.report.svg import line_chart, steps_between

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>"
    " ![i](http://evil.example/p.png) [x](javascript:alert(1))"
)


class Seen(HTMLParser):
    """Elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture(scope="module")
def stalled(root: Path) -> Diagnosis:
    return rendered(diagnose_paths([root / "tests/recordings/zero3-stall"], Options(load_catalogue())))[0]


def test_report_of_a_stall_has_charts(stalled: Diagnosis) -> None:
    page = to_html(stalled)
    seen = Seen(page)
    assert "gloo-collective-timeout" in page and "rank 1 step 240/480" in page
    assert seen.tags.count("svg") == 2
    charts = [value for name, value in seen.attributes if name == "aria-label"]
    assert charts == ["Loss (rank 0)", "Seconds per step (ranks 0, 1)"]
    assert "指标曲线" in to_html(stalled, "zh")


def test_report_loads_and_runs_nothing(stalled: Diagnosis) -> None:
    seen = Seen(to_html(stalled))
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name in ("src", "srcset") or name.startswith("on")]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in seen.attributes


def test_log_text_is_escaped() -> None:
    place = Place(0, HOSTILE, 3, None, 1, HOSTILE)
    primary = Primary(
        "r",
        HOSTILE,
        "cause",
        "fatal",
        0.9,
        0,
        HOSTILE,
        3,
        None,
        1,
        [HOSTILE],
        {},
        f"Why {HOSTILE}",
        [HOSTILE],
    )
    found = Diagnosis(
        "failed",
        primary,
        unknown=[UnknownException(HOSTILE, HOSTILE, [0], 1, place, [HOSTILE])],
        notes=[HOSTILE],
        digest=[HOSTILE],
        environment={HOSTILE: "1"},
    )
    seen = Seen(to_html(found, context=HOSTILE))
    assert not {"script", "img"} & set(seen.tags)
    assert not [value for name, value in seen.attributes if name == "href" and not value.startswith("http")]


def test_json_report_contains_no_series(stalled: Diagnosis) -> None:
    assert stalled.series and b'"series"' not in to_json(stalled)


def test_series_have_one_length_and_are_bounded(stalled: Diagnosis) -> None:
    assert {curve.name for curve in stalled.series} == {"loss", "step_seconds"}
    assert all(len(curve.steps) == len(curve.values) <= MOST_POINTS for curve in stalled.series)


def test_series_cover_the_steps_of_a_log(tmp_path: Path) -> None:
    lines = [
        f"{{'loss': {'nan' if n == 900 else 2 / n}, 'grad_norm': 1.5, 'epoch': {n / 100}}}"
        for n in range(1, 1001)
    ]
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    series = {
        curve.name: curve
        for curve in rendered(diagnose_paths([tmp_path], Options(load_catalogue())))[0].series
    }
    assert set(series) == {"loss", "grad_norm"}
    assert series["loss"].values[0] == pytest.approx(2.0) and len(series["loss"].values) == MOST_POINTS
    assert all(value == 1.5 for value in series["grad_norm"].values)


def test_thinning_keeps_both_ends() -> None:
    assert thinned(range(5), 10) == [0, 1, 2, 3, 4]
    kept = thinned(range(1001), 11)
    assert kept == list(range(0, 1001, 100))


def test_gap_is_drawn() -> None:
    chart = line_chart([Series("loss", None, [1, 2, 3, 4], [1.0, 2.0, None, 3.0])], "a & b", "step", mark=2)
    assert chart.count("<polyline") == 2 and chart.count('class="gap"') == 1
    assert 'aria-label="a &amp; b"' in chart and 'class="mark"' in chart


@pytest.mark.parametrize("values", [[None, None], []])
def test_empty_series_has_no_chart(values: list[float | None]) -> None:
    assert line_chart([Series("loss", 0, [float(n) for n in range(len(values))], values)], "t", "x") == ""


def test_flat_line_has_margins() -> None:
    chart = line_chart([Series("loss", 0, [1, 2], [0.0, 0.0])], "t", "step")
    places = {float(point.split(",")[1]) for point in re.findall(r'points="([^"]+)"', chart)[0].split()}
    assert len(places) == 1 and 20 < places.pop() < 190


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 5, 10]), (0, 1, [0, 0.5, 1]), (3, 3, [3]), (-1e-6, 1e-6, [-1e-6, -5e-7, 0, 5e-7, 1e-6])],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    found = steps_between(low, high, 4)
    assert found == pytest.approx(ticks) and all(math.isfinite(tick) for tick in found)
