"""A hanging run on its page, from its first step to its incident, without a reload."""

from __future__ import annotations

import contextlib
import json
import re
import time
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import psutil
import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from scene import HANGING, HANGS, SOURCES, STEADY
from stage import board, choose_run, open_mark, replayed


def step_shown(page, at_least: int = 1) -> int:  # type: ignore[no-untyped-def]
    """Return the step in the page's first figure; wait, because a refresh may remove it for a moment."""
    shown = page.wait_for_function(
        """least => {
            for (const metric of document.querySelectorAll('[data-testid="stMetric"]')) {
                const found = metric.innerText.match(/^Step[^]*?(\\d+) \\/ 400/);
                if (found && Number(found[1]) >= least) return Number(found[1]);
            }
            return null;
        }""",
        arg=at_least,
    )
    return int(shown.json_value())


def test_incident_appears_without_a_reload(scene, watched, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The page is open before the run exists: it waits, follows the steps, and then reports the stall."""
    page, url = watched.page, scene.urls["embedded"]
    run = f"awaited-{time.monotonic_ns()}"  # a rerun of this test needs another run
    page.goto(f"{url}/run?run={run}")
    page.get_by_role("heading", name="No run has this name yet").wait_for()
    page.evaluate("window.sameDocument = true")
    scene.run(run, HANGS, floor=4.0)

    page.get_by_role("heading", name="Training").wait_for()
    first = step_shown(page)
    page.get_by_role("heading", name="Stalled").wait_for()
    assert first <= step_shown(page, at_least=40) == 40
    page.get_by_text("What to change").wait_for()
    page.get_by_text("ZeRO-3 discarded its recorded order of modules").first.wait_for()
    assert page.evaluate("window.sameDocument") is True
    frame = board(page)
    for name in frame.locator("figure").evaluate_all("all => all.map(figure => figure.dataset.chart)"):
        figure = f'figure[data-chart="{name}"]'
        frame.locator(figure).scroll_into_view_if_needed()  # charts outside the window are not redrawn
        frame.wait_for_function(  # the incident is marked on every chart
            "plot => (document.querySelector(plot)?.layout?.shapes || []).length",
            arg=f"{figure} .js-plotly-plot",
        )

    # The log's text is shown as text, and has no effect.
    page.get_by_text("More lines").click()
    page.get_by_text("<script>alert('log')</script>").first.wait_for()
    assert watched.dialogs == []
    assert page.locator("img[src='x']").count() == 0 and page.get_by_role("link", name="x").count() == 0
    # Neither the page nor the server sent a request outside.
    assert watched.outside(url) == set()
    remotes = set()
    for process in psutil.Process(scene.processes["embedded"].pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # the process may have ended just now
            remotes |= {other.raddr.ip for other in process.net_connections() if other.raddr}
    assert remotes <= {"127.0.0.1"}
    page.screenshot(path=tmp_path / "run.png")


@pytest.mark.parametrize("source", SOURCES)
def test_charts_are_updated_in_place_and_keep_their_zoom(scene, watched, source: str) -> None:  # type: ignore[no-untyped-def]
    """The nodes stay the same without fading, and a zoom survives refreshes."""
    page = watched.page
    page.goto(f"{scene.urls[source]}/run?run=steady")
    frame = board(page, 3)
    frame.evaluate(
        """() => {
            window.plots = [...document.querySelectorAll('.js-plotly-plot')];
            window.faded = 0;
            const nodes = window.plots.flatMap(plot => {
                const above = [];
                for (let node = plot; node; node = node.parentElement) above.push(node);
                for (let node = window.frameElement; node; node = node.parentElement) above.push(node);
                return above;
            });
            const look = () => {
                window.faded += nodes.some(node => getComputedStyle(node).opacity < 1) ? 1 : 0;
                requestAnimationFrame(look);
            };
            look();
        }"""
    )
    ranges = (  # Plotly writes a zoom as dates
        "() => window.plots.map(plot => plot.layout.xaxis.range.map("
        "t => typeof t === 'number' ? t : Date.parse(t.replace(' ', 'T') + 'Z')))"
    )
    follows = frame.evaluate(ranges)
    frame.wait_for_function(f"before => ({ranges})()[0][1] > before", arg=follows[0][1])
    area = frame.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(area["x"] + area["width"] * 0.3, area["y"] + area["height"] * 0.5)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] * 0.6, area["y"] + area["height"] * 0.5, steps=5)
    page.mouse.up()
    undo = frame.get_by_role("button", name="reset zoom")
    undo.first.wait_for()
    # The next chart follows; charts outside the window follow when they become visible (test_board).
    frame.wait_for_function(
        f"() => {{ const [one, two] = ({ranges})(); return one.every((t, i) => Math.abs(t - two[i]) < 2); }}"
    )
    zoomed = frame.evaluate(ranges)
    assert zoomed[0] != follows[0]
    last = "() => { const x = window.plots[0]._fullData[0].x; return String(x[x.length - 1]); }"
    for _ in range(3):  # the number of points does not grow with the run: a longer run has coarser points
        frame.wait_for_function(f"before => ({last})() !== before", arg=frame.evaluate(last))
    assert frame.evaluate(ranges)[0] == pytest.approx(zoomed[0])
    assert frame.evaluate("() => window.plots.every(plot => plot.isConnected)")
    assert frame.evaluate("() => window.faded") == 0
    undo.first.click()
    frame.wait_for_function(
        f"until => ({ranges})().slice(0, 2).every(range => range[1] > until)", arg=zoomed[0][1]
    )
    assert undo.count() == 0 or not undo.first.is_visible()


def test_recorded_run_is_shown_as_stalled_and_then_failed(scene, watched) -> None:  # type: ignore[no-untyped-def]
    """The run is a real recording of two ranks under ZeRO-3, replayed faster."""
    page = watched.page
    run = f"recorded-{time.monotonic_ns()}"
    scene.run(run, replayed(6.0), floor=3.0)
    page.goto(f"{scene.urls['embedded']}/run?run={run}")
    page.get_by_role("heading", name="Stalled").wait_for(timeout=120_000)
    page.get_by_text("rank 1 holds up the run at zero3_stall.py:124").first.wait_for()
    page.get_by_role("heading", name="Failed").wait_for(timeout=120_000)
    board(page).wait_for_function(
        "names => { const plot = document.querySelector('.js-plotly-plot');"
        " return plot && JSON.stringify(plot.data.map(trace => trace.name)) === names; }",
        arg='["Step reached","Invalidations so far"]',
    )


@pytest.mark.parametrize("source", SOURCES)
def test_mark_of_an_incident_opens_it(scene, watched, source: str) -> None:  # type: ignore[no-untyped-def]
    """The test goes back and forth: a late refresh of the old page must not affect the next page."""
    page = watched.page
    page.goto(f"{scene.urls[source]}/run?run=hangs-one")
    page.get_by_role("heading", name="Stalled").wait_for()
    open_mark(page, "stall")
    for _ in range(2):
        page.get_by_role("heading", name="hangs-one: open").wait_for()
        page.get_by_text("Timeline").wait_for()
        page.get_by_role("link", name="View run").click()
        page.get_by_role("heading", name="Stalled").wait_for()
        page.go_back()  # one press goes back one page
    page.get_by_role("heading", name="hangs-one: open").wait_for()
    page.go_back()  # the page of the marked run, although it is not the newest run
    page.wait_for_url("**/run?run=hangs-one")
    page.get_by_role("heading", name="Stalled").wait_for()
    assert watched.failures == []


def test_times_are_in_the_time_zone_of_the_browser(scene, browser) -> None:  # type: ignore[no-untyped-def]
    """The text of the page and the axes of the charts use the same time zone."""
    context = browser.new_context(timezone_id="Asia/Kolkata")  # India's offset includes half an hour
    context.set_default_timeout(120_000)
    try:
        page = context.new_page()
        page.goto(f"{scene.urls['embedded']}/run?run=hangs-one")
        page.get_by_role("heading", name="Stalled").wait_for(timeout=120_000)
        since = re.search(r"since (\d\d:\d\d)", page.locator("[class*=st-key-verdict]").inner_text())
        board(page).locator(".xtick", has_text=":").first.wait_for(state="attached")
        ticks = board(page).locator(".xtick").all_text_contents()
        agent = json.loads((scene.home / "runs" / "hangs-one" / "agent.json").read_text())
        began, now = agent["started_at"], time.time()
        up = [datetime.fromtimestamp(began, ZoneInfo("Asia/Kolkata"))]
        while up[-1].timestamp() < now + 60:
            up.append(up[-1] + timedelta(minutes=1))
        minutes = {f"{minute:%H:%M}" for minute in up}
        assert since and since[1] in minutes
        assert {tick[:5] for tick in ticks if ":" in tick} & minutes
    finally:
        context.close()


def test_first_run_appears_without_a_reload(stage, watched) -> None:  # type: ignore[no-untyped-def]
    page = watched.page
    stage.dashboard()
    page.goto(stage.url)
    page.get_by_role("heading", name="No runs yet").wait_for()
    stage.run("first", STEADY, floor=600.0)
    choose_run(page, "first")
    page.get_by_role("heading", name="Training").wait_for()


@pytest.mark.parametrize(("source", "scheme"), [("embedded", "light"), ("prometheus", "dark")])
def test_runs_page_links_to_the_run(scene, watched, source: str, scheme: str) -> None:  # type: ignore[no-untyped-def]
    """The run is searched, opened, and shown again in the other language, which stays chosen."""
    page, run = watched.page, HANGING[source]
    page.emulate_media(color_scheme=scheme)
    page.goto(scene.urls[source])
    page.get_by_text("To open a").wait_for()
    choose_run(page, "steady", search="steady")
    page.get_by_role("heading", name="Training").wait_for()
    page.go_back()  # one press goes back one page, which is unchanged
    page.wait_for_url("**/?q=steady")
    page.locator(".runs").get_by_role("link", name="steady").press("Enter")
    page.get_by_role("heading", name="Training").wait_for()
    for _ in range(5):  # a click is lost while the page is redrawn
        page.get_by_text("中文", exact=True).click()
        with contextlib.suppress(PlaywrightTimeout):
            page.get_by_role("heading", name="训练中").wait_for(timeout=30_000)
            break
    page.get_by_role("link", name="训练任务").click()
    page.get_by_text("点击某一行").wait_for()
    page.locator(".runs td", has_text="卡住").first.wait_for()
    choose_run(page, run, search=run)
    page.get_by_role("heading", name="卡住").wait_for()
    page.goto(f"{scene.urls[source]}/incidents")  # an address that does not name the language
    page.get_by_role("heading", name="事件").wait_for()
    assert watched.outside(scene.urls[source]) == set() and watched.failures == []
