"""The frame of the charts alone in Chromium, without a page that resizes it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
import stallwatch_dashboard.pages as pages
from stallwatch_dashboard.charts.base import HEIGHT, Drawing

_FRONTEND = Path(pages.__file__).with_name("board_frontend")
_PLOTLY = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
_HOST = "http://board.test"

#: [chart, width of its figure, width of Plotly's drawing], after all charts are drawn.
_WIDTHS = """() => [...document.querySelectorAll('figure')].map(figure => [
    figure.dataset.chart,
    Math.round(figure.getBoundingClientRect().width),
    Math.round((figure.querySelector('.main-svg') || figure).getBoundingClientRect().width),
    figure.querySelectorAll('.main-svg').length > 0])"""


@pytest.fixture
def frame(watched):  # type: ignore[no-untyped-def]
    """Yield the frame's page with a constant width."""
    page = watched.page

    def serve(route) -> None:  # type: ignore[no-untyped-def]
        name = route.request.url.rpartition("/")[2]
        route.fulfill(path=_PLOTLY if name == "plotly.min.js" else _FRONTEND / name)

    page.route(f"{_HOST}/**", serve)
    page.goto(f"{_HOST}/board/index.html")
    page.wait_for_function("() => window.Plotly")
    return page


def tell(page, *keys: str, wide: tuple[str, ...] = (), last: int = 2) -> None:  # type: ignore[no-untyped-def]
    """Send charts to the frame as Streamlit does; `last` is the end of their lines."""
    figure = Drawing(
        [{"type": "scatter", "x": [1, last], "y": [1, 2]}],
        {"height": HEIGHT, "xaxis": {"range": [1, last]}},
    ).to_json()
    charts = [
        {"key": key, "title": key, "figure": figure, "wide": key in wide, "height": HEIGHT} for key in keys
    ]
    message = {"type": "streamlit:render", "args": {"charts": charts, "words": {"undo_zoom": "-"}}}
    page.evaluate("message => window.postMessage(message, '*')", message)


def fit(page, *halves: str, whole: tuple[str, ...] = ()) -> None:  # type: ignore[no-untyped-def]
    """Wait until `halves` and `whole` charts are as wide as their places; fail with those that are not."""
    expected = {**dict.fromkeys(halves, 628), **dict.fromkeys(whole, 1280)}
    deadline = 480
    found = page.evaluate(_WIDTHS)
    while deadline and not (len(found) == len(expected) and all(item[3] for item in found)):
        page.wait_for_timeout(250)
        deadline, found = deadline - 1, page.evaluate(_WIDTHS)
    page.wait_for_timeout(500)
    found = page.evaluate(_WIDTHS)
    assert {key: (place, drawn) for key, place, drawn, _ in found} == {k: (w, w) for k, w in expected.items()}


def test_charts_fill_their_width_on_a_fresh_load(frame) -> None:  # type: ignore[no-untyped-def]
    tell(frame, "progress", "step_time", "loss", "memory", "phases", wide=("phases",))
    fit(frame, "progress", "step_time", "loss", "memory", whole=("phases",))


def test_late_chart_narrows_the_single_chart(frame) -> None:  # type: ignore[no-untyped-def]
    tell(frame, "progress", "step_time", "loss")
    fit(frame, "progress", "step_time", whole=("loss",))
    tell(frame, "progress", "step_time", "loss", "memory")
    fit(frame, "progress", "step_time", "loss", "memory")


def test_invisible_charts_are_redrawn_only_when_they_become_visible(frame) -> None:  # type: ignore[no-untyped-def]
    keys = [f"chart{number}" for number in range(14)]  # more charts than fit into the window
    ends = "key => document.querySelector(`[data-chart=${key}] .js-plotly-plot`)?._fullData?.[0].x[1]"
    tell(frame, *keys)
    for key in keys:
        frame.wait_for_function(f"key => ({ends})(key) === 2", arg=key)
    for last in (3, 4):
        tell(frame, *keys, last=last)
        for key in keys[:4]:
            frame.wait_for_function(f"([key, last]) => ({ends})(key) === last", arg=[key, last])
    assert frame.evaluate(ends, keys[-1]) == 2
    frame.locator(f"[data-chart={keys[-1]}]").scroll_into_view_if_needed()
    frame.wait_for_function(f"key => ({ends})(key) === 4", arg=keys[-1])


def test_zoom_applies_to_all_charts_when_they_become_visible(frame) -> None:  # type: ignore[no-untyped-def]
    keys = [f"chart{number}" for number in range(14)]  # more charts than fit into the window
    xrange = "key => document.querySelector(`[data-chart=${key}] .js-plotly-plot`)?._fullLayout?.xaxis.range"
    whole = {"key": keys[-1], "is": "1,2"}
    holds = f"one => String(({xrange})(one.key)) === one.is"
    tell(frame, *keys)
    frame.wait_for_function(holds, arg=whole)
    frame.evaluate(
        "key => document.querySelector(`[data-chart=${key}] .js-plotly-plot`)"
        ".emit('plotly_relayout', {'xaxis.range[0]': 1.25, 'xaxis.range[1]': 1.5})",
        keys[0],
    )
    for key in keys[:2]:
        frame.wait_for_function(holds, arg={"key": key, "is": "1.25,1.5"})
    assert frame.evaluate(holds, whole)
    frame.locator(f"[data-chart={keys[-1]}]").scroll_into_view_if_needed()
    frame.wait_for_function(holds, arg={"key": keys[-1], "is": "1.25,1.5"})
    frame.locator(f"[data-chart={keys[-1]}] button").click()
    frame.wait_for_function(holds, arg=whole)
