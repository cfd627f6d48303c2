"""The page of a simulated run of 1,024 ranks on 128 hosts shows the blamed rank without a search."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="playwright is not installed")
import thousand
from playwright.sync_api import expect
from stage import CHROMIUM, Stage, board

#: Labels on the axis of one of the maps.
_ROWS = """chart => [...document.querySelectorAll(`figure[data-chart=${chart}] .ytick text`)]
    .map(text => text.textContent)"""


@pytest.fixture(scope="module")
def thousand_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    home = tmp_path_factory.mktemp("thousand") / "home"
    thousand.make(home)
    stage = Stage(home)
    stage.dashboard()
    yield stage
    stage.close()


@pytest.mark.parametrize(("language", "only"), [("en", "hosts only"), ("zh", "只显示主机")])
def test_heat_maps_show_the_blamed_host_and_rank(
    thousand_ranks: Stage,
    watched,  # type: ignore[no-untyped-def]
    language: str,
    only: str,
) -> None:
    page = watched.page
    page.goto(f"{thousand_ranks.url}/run?run={thousand.RUN}&lang={language}")
    frame = board(page, 3)
    frame.wait_for_function("() => document.querySelector('figure[data-chart=lag_ranks] .ytick text')")
    hosts, ranks = (frame.evaluate(_ROWS, chart) for chart in ("lag", "lag_ranks"))
    assert len(hosts) <= 18 and [name for name in hosts if " " in name] == ["▶ n77", "? n100"]
    assert len(ranks) == 8 and [name for name in ranks if "▶" in name] == ["▶ rank 611"]
    facts = page.get_by_text("n100").first
    expect(facts).to_contain_text("128")
    expect(facts).to_contain_text("n77")

    # Of 128 hosts, the list renders only those near the chosen one.
    page.get_by_test_id("stSelectbox").nth(1).locator("input").fill(only)
    page.keyboard.press("Enter")
    frame.wait_for_function("() => !document.querySelector('figure[data-chart=lag_ranks]')")
    page.goto(f"{thousand_ranks.url}/run?run={thousand.RUN}&host=n9&lang={language}")
    board(page, 3).wait_for_function(
        "() => document.querySelector('figure[data-chart=lag_ranks] .ytick text').textContent == 'rank 64'"
    )
    assert watched.failures == [] and watched.outside(thousand_ranks.url) == set()
