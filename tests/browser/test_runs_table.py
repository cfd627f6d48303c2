"""The table of runs alone in Chromium, without a page: search, states, orders, and updates."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
from playwright.sync_api import expect

import stallwatch_dashboard.pages.runs_table as runs_table
from stallwatch_dashboard.data.overview import RunRow
from stallwatch_dashboard.words import Reader

NOW = 1000.0
HOST = "http://runs.test"
HOSTILE = "<img src=x onerror=alert(1)> **a** \u202e&run=b#?"
ROWS = [
    RunRow(
        "slow",
        "degraded",
        "node2",
        ("torchrun", "sft.py"),
        step=50,
        total_steps=100,
        loss=2.0,
        step_seconds=4.0,
        baseline_seconds=1.0,
        started_at=10.0,
    ),
    RunRow(
        "Fast",
        "training",
        "node1",
        ("torchrun", "dpo.py"),
        step=50,
        total_steps=1000,
        loss=0.5,
        step_seconds=1.0,
        baseline_seconds=1.0,
        started_at=20.0,
    ),
    RunRow("new", "starting", "node1", started_at=30.0),
]

_PAGE = """<!doctype html><meta charset=utf-8><style>CSS</style><main>HTML</main><script type=module>
import draw from "./runs.js";
window.show = data => draw({ data, parentElement: document.querySelector("main") });
</script>"""


@pytest.fixture
def page(watched):  # type: ignore[no-untyped-def]
    """Yield a page that draws the table from the data of `show`."""
    html, css, js = runs_table._sources()
    whole = _PAGE.replace("CSS", css).replace("HTML", html)

    def serve(route) -> None:  # type: ignore[no-untyped-def]
        if route.request.url.endswith("runs.js"):
            route.fulfill(body=js, content_type="text/javascript")
        else:
            route.fulfill(body=whole, content_type="text/html")

    watched.page.route(f"{HOST}/**", serve)
    yield watched.page
    assert watched.failures == [] and watched.dialogs == []


def show(page, rows: list[RunRow], language: str = "en") -> None:  # type: ignore[no-untyped-def]
    shown: dict[str, Any] = runs_table.table(rows, Reader(language, now=NOW), {})
    page.wait_for_function("() => window.show")
    page.evaluate("text => window.show(JSON.parse(text))", json.dumps(shown))


def opened(page, query: str = "", rows: list[RunRow] = ROWS) -> None:  # type: ignore[no-untyped-def]
    page.goto(f"{HOST}/{query}")
    show(page, rows)


def names(page) -> list[str]:  # type: ignore[no-untyped-def]
    return page.locator("tbody a").all_text_contents()  # type: ignore[no-any-return]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_states_are_not_truncated(page, language: str) -> None:  # type: ignore[no-untyped-def]
    page.goto(HOST)
    page.add_style_tag(content=":root { --st-font: 'Source Sans 3', 'Liberation Sans', sans-serif }")
    runs = [RunRow(state, state) for state in runs_table.ICONS]  # type: ignore[arg-type]
    show(page, [*runs, RunRow("early", "finished", step=88, total_steps=100)], language)
    states = page.locator("tbody tr > :first-child")
    cut = "all => all.filter(cell => cell.scrollWidth > cell.clientWidth).map(cell => cell.textContent)"
    assert states.count() == len(runs_table.ICONS) + 1
    assert states.evaluate_all(cut) == []


def test_incident_column_uses_the_width_of_the_window(page) -> None:  # type: ignore[no-untyped-def]
    """The columns up to the duration fit; the others are reached by scrolling."""
    rows = [replace(ROWS[0], cause="cuda-oom", losses=(2.0, 1.0), phase="train", host_memory_bytes=1.0)]
    widths = []
    for width in (1280, 1440):
        page.set_viewport_size({"width": width - 80, "height": 600})  # the page's margins are wider
        opened(page, rows=rows)
        scroll = page.locator(".runs-scroll").bounding_box()
        last = page.get_by_role("columnheader", name="Duration").bounding_box()
        assert last["x"] + last["width"] <= scroll["x"] + scroll["width"]
        widths.append(page.get_by_role("columnheader", name="Incident").bounding_box()["width"])
    assert widths[1] > widths[0] >= 178


def test_long_names_that_differ_only_at_their_end_stay_distinguishable(page) -> None:  # type: ignore[no-untyped-def]
    runs = ["train-20261129-090802", "finetune-llama-20261129-090802", "finetune-llama-20261129-090804"]
    opened(page, rows=[RunRow(run, "finished") for run in runs])
    shown = page.locator("tbody a").all_text_contents()
    assert shown[0] == runs[0] and [name[-6:] for name in shown] == [run[-6:] for run in runs]
    assert page.get_by_title(runs[1]).count() == 1
    cut = "all => all.filter(cell => cell.scrollWidth > cell.clientWidth).length"
    assert page.locator("tbody tr > :nth-child(2)").evaluate_all(cut) == 0


def test_empty_column_is_hidden_with_its_sort_order(page) -> None:  # type: ignore[no-untyped-def]
    opened(page, "?sort=loss")
    assert names(page) == ["slow", "Fast", "new"]
    show(page, [replace(row, loss=None) for row in ROWS])
    expect(page.get_by_role("columnheader", name="Loss", exact=True)).to_have_count(0)
    assert sorted(names(page)) == ["Fast", "new", "slow"]
    expect(page.get_by_role("columnheader", name="State")).to_have_attribute("aria-sort", "ascending")
    show(page, ROWS)
    expect(page.get_by_role("columnheader", name="Loss", exact=True)).to_have_count(1)


def test_search_matches_all_words_in_any_column_immediately(page) -> None:  # type: ignore[no-untyped-def]
    opened(page)
    search = page.get_by_role("searchbox", name="Search runs, hosts, commands, and incidents")
    assert names(page) == ["slow", "Fast", "new"]
    search.fill("NODE1 dpo")
    assert names(page) == ["Fast"] and page.url == f"{HOST}/"
    expect(page.get_by_role("status")).to_have_text(
        "1 of 3 runs · ◌ 1 starting · ▶ 1 training · ▼ 1 degraded"
    )
    show(page, ROWS)  # an update does not change the search
    assert names(page) == ["Fast"] and search.input_value() == "NODE1 dpo"
    search.press("Enter")
    assert page.url == f"{HOST}/?q=NODE1+dpo"
    search.fill("node1 sft")
    assert names(page) == [] and not page.get_by_role("table").is_visible()
    expect(page.get_by_text("No run matches")).to_be_visible()


def test_cleared_search_is_removed_from_the_url(page) -> None:  # type: ignore[no-untyped-def]
    opened(page, "?q=dpo")
    assert names(page) == ["Fast"]
    page.get_by_role("searchbox").press("Escape")  # as the cross of the search box does
    expect(page.locator("tbody a")).to_have_text(["slow", "Fast", "new"])
    page.wait_for_url(f"{HOST}/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_empty_values_are_sorted_last_in_both_orders(page) -> None:  # type: ignore[no-untyped-def]
    phases = {"slow": "forward", "Fast": "", "new": "optimizer"}
    opened(page, "?sort=phase", [replace(row, phase=phases[row.run]) for row in ROWS])
    assert names(page) == ["slow", "new", "Fast"]
    page.get_by_role("columnheader", name="Phase", exact=True).get_by_role("button").click()
    assert names(page) == ["new", "slow", "Fast"] and page.url == f"{HOST}/?sort=-phase"


def test_states_are_combined_with_or_and_each_choice_is_in_the_history(page) -> None:  # type: ignore[no-untyped-def]
    opened(page, "?lang=en")
    page.get_by_role("button", name="starting").click()
    page.get_by_role("button", name="degraded").click()
    assert names(page) == ["slow", "new"]
    assert page.url == f"{HOST}/?lang=en&state=starting%2Cdegraded"
    expect(page.get_by_role("button", name="degraded")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="starting").click()
    assert names(page) == ["slow"]
    for before in (["slow", "new"], ["new"], ["slow", "Fast", "new"]):
        page.go_back()
        expect(page.locator("tbody a")).to_have_text(before)
    assert page.url == f"{HOST}/?lang=en"


def test_column_headers_sort_the_table(page) -> None:  # type: ignore[no-untyped-def]
    opened(page)
    orders = {
        "run": ["Fast", "new", "slow"],
        "started": ["new", "Fast", "slow"],
        "step_time": ["slow", "Fast", "new"],
        "left": ["Fast", "slow", "new"],
        "loss": ["slow", "Fast", "new"],
    }
    for order, expected in orders.items():
        page.get_by_role("combobox").select_option(order)
        assert (order, names(page), page.url) == (order, expected, f"{HOST}/?sort={order}")
    head = page.get_by_role("columnheader", name="Step time", exact=True)
    head.get_by_role("button").click()
    assert names(page) == ["slow", "Fast", "new"] and page.url == f"{HOST}/?sort=seconds"
    expect(head).to_have_attribute("aria-sort", "descending")
    head.get_by_role("button").click()
    # a run without the value comes last
    assert names(page) == ["Fast", "slow", "new"] and page.url == f"{HOST}/?sort=-seconds"
    expect(head).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_role("combobox").locator("option:checked")).to_have_text("Step time ↑")
    page.get_by_role("combobox").select_option("urgency")
    assert names(page) == ["slow", "Fast", "new"] and page.url == f"{HOST}/"


def test_every_sort_order_in_the_url_shows_all_runs(page) -> None:  # type: ignore[no-untyped-def]
    opened(page)
    for column in runs_table.COLUMNS:
        if column.order:
            page.evaluate(
                """query => {
                    history.replaceState({}, '', query);
                    dispatchEvent(new PopStateEvent('popstate'));
                }""",
                f"?sort=-{column.order}&state=degraded,training,starting",
            )
            assert sorted(names(page)) == ["Fast", "new", "slow"], column.order
            expect(page.locator("[aria-sort]")).to_have_count(1)


def test_invalid_url_parameters_are_ignored(page) -> None:  # type: ignore[no-untyped-def]
    opened(page, "?state=on-fire,&sort=<script>&q=")
    assert names(page) == ["slow", "Fast", "new"]
    opened(page, f"?q={'x' * 5000}")
    assert names(page) == [] and len(page.get_by_role("searchbox").input_value()) == 200


def test_row_links_to_its_run_for_any_name(page) -> None:  # type: ignore[no-untyped-def]
    opened(page, "?q=img", [replace(ROWS[0], run=HOSTILE, phase=HOSTILE, host=HOSTILE), *ROWS])
    page.evaluate("addEventListener('popstate', () => { window.gone = location.href; })")
    page.locator("tbody td").nth(1).click()
    assert page.evaluate("new URLSearchParams(location.search).get('run')") == HOSTILE
    assert page.evaluate("window.gone") == page.url and "/run?run=" in page.url
    assert page.locator("img").count() == 0 and "\u202e" not in page.locator("main").inner_text()
    page.go_back()
    expect(page.locator("tbody a")).to_have_count(1)


def test_updates_keep_nodes_focus_and_scroll_position(page) -> None:  # type: ignore[no-untyped-def]
    many = [RunRow(f"r{n:03}", "training", step=n, loss=n / 7, losses=(1.0, n / 7)) for n in range(300)]
    opened(page, "", many)
    lines = page.locator("tbody tr")
    for drawn in (60, 120, 180):  # more rows are drawn when the reader scrolls near them
        expect(lines).to_have_count(drawn)
        if drawn < 180:
            lines.nth(drawn - 10).scroll_into_view_if_needed()
    page.evaluate(
        """() => {
            window.lines = new Map([...document.querySelectorAll('tbody tr')]
                .map(line => [line.querySelector('a').textContent, line]));
            document.querySelector('.runs-scroll').scrollTop = 3000;
            window.lines.get('r090').querySelector('a').focus({ preventScroll: true });
        }"""
    )
    later = [replace(row, step=(row.step or 0) + 1) for row in many if row.run != "r001"]
    later.insert(40, later.pop(89))  # this run has become more urgent
    show(page, later)
    kept = page.evaluate(
        """() => ({
            same: [...document.querySelectorAll('tbody tr')].slice(0, 179)  // one more came into sight
                .every(line => window.lines.get(line.querySelector('a').textContent) === line),
            focus: document.activeElement.textContent,
            top: document.querySelector('.runs-scroll').scrollTop,
            place: [...document.querySelectorAll('tbody a')].findIndex(link => link.textContent === 'r090'),
        })"""
    )
    assert kept == {"same": True, "focus": "r090", "top": 3000, "place": 40}
    assert page.locator("tbody tr").nth(0).locator("td").nth(1).text_content() == "1"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == later[41].run
    show(page, later, "zh")  # the other language changes the headings, not the runs
    assert page.locator("tbody td").first.text_content() == "▶ 训练中" and len(names(page)) == 180
