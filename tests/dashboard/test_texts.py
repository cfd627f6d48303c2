"""Formatted numbers and words, and text that must not be read as markup."""

from __future__ import annotations

import math
import string
from datetime import timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from stallwatch_dashboard import formats, words
from stallwatch_dashboard.data.overview import RunRow
from stallwatch_dashboard.pages.incident import incident_table
from stallwatch_dashboard.pages.runs_table import table
from stallwatch_dashboard.safetext import advice, label, markdown, plain, prose
from stallwatch_rules.locale import render
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.fixes import fixes_for


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0.0834, "83 ms"),
        (0.9999, "1 s"),
        (2.3149, "2.31 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (250, "4 min 10 s"),
        (3599.9, "1 h"),
        (11_100, "3 h 5 min"),
        (187_200, "2 d 4 h"),
        (-3, "−3 s"),
    ],
)
def test_durations_are_formatted(value: float | None, shown: str) -> None:
    assert formats.seconds(value) == shown


def test_durations_have_localized_units() -> None:
    assert [formats.seconds(value, "zh") for value in (None, -0.083, 250)] == ["–", "−83 毫秒", "4 分 10 秒"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.63149, "0.6315"),
        (0, "0"),
        (12.5, "12.5"),
        (3.2e-7, "3.200e-07"),
        (1e9, "1.000e+09"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_are_formatted(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (512, "512 B"),
        (1010 * 1024, "1010.0 KiB"),
        (1024**3 - 1, "1.0 GiB"),
        (1.5 * 1024**3, "1.5 GiB"),
        (3 * 1024**4, "3.0 TiB"),
        (None, "–"),
    ],
)
def test_sizes_are_formatted(value: float | None, shown: str) -> None:
    assert formats.byte_size(value) == shown


def test_steps_and_times_are_formatted() -> None:
    assert formats.steps(1234, 90000) == "1,234 / 90,000"
    assert formats.steps(1234, None) == "1,234"
    assert formats.clock(0, timezone.utc, 3600) == "00:00:00"
    assert formats.clock(0, timezone.utc, 90000) == "1970-01-01 00:00:00"


HOSTILE = [
    "<script>alert(1)</script>",
    "**bold** _em_ `code` ~~gone~~",
    "[link](javascript:alert(1)) ![img](http://x/y.png)",
    "# heading\n\n* item\n\n> quote",
    "$x^2$ :red[red] :material/delete: :smile:",
    "<img src=x onerror=alert(1)>",
    "| a | b |\n|---|---|",
    "&lt;b&gt; &#60;",
    "```\nfence\n```",
]


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text).strip()


def shown(html: str) -> str:
    for name, char in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(name, char)
    return html.replace("\u2060", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_is_shown_as_text(text: str) -> None:
    html = rendered(markdown(text))
    assert html.startswith("<p>") and html.count("<") == 2
    assert shown(html[3:-4]) == plain(text)


@given(st.text(alphabet=string.punctuation + "ab1 \n\t", max_size=60))
def test_any_text_is_shown_as_text(text: str) -> None:
    html = rendered(markdown(text))
    assert html in ("", f"<p>{html[3:-4]}</p>") and html.count("<") in (0, 2)
    assert shown(html[3:-4]) == plain(text)


@given(st.text(alphabet="`<*[ab", max_size=40))
def test_advice_renders_only_code(text: str) -> None:
    html = rendered("x" + advice(text))
    assert html.count("<") == 2 + 2 * html.count("<code>")


def test_advice_keeps_code_readable() -> None:
    assert rendered(advice("Set `a_b` to *1*.")) == "<p>Set <code>a_b</code> to *1*.</p>"


def test_urls_do_not_become_links() -> None:
    for address in ("https://evil.example/x", "www.evil.example", "someone@evil.example"):
        assert address not in markdown(address).replace("\\", "")


def test_control_and_direction_characters_are_removed() -> None:
    assert plain("a\x1b[31mb\u202ec\x00 d\n\te") == "abc d e"


def test_chart_labels_are_escaped_and_bounded() -> None:
    assert label("<a href=x>y</a> & z") == "&lt;a href=x&gt;y&lt;/a&gt; &amp; z"
    assert len(label("x" * 1000, 20)) == 20


def test_only_sentences_of_rule_pages_keep_their_markdown() -> None:
    page = load_catalogue().pages["zero3-trace-cache-invalidated"]
    assert prose(page.sections.why, page) == page.sections.why.strip()
    for language in ("en", "zh"):
        for environment in ({}, {"deepspeed": "0.19.8"}):
            for fix in fixes_for(page, environment):
                text = render(fix, language)
                assert prose(text, page) == text.strip()
    assert prose("*<b>*", page) == advice("*<b>*") == prose("*<b>*", None)


def test_unknown_language_falls_back_to_english() -> None:
    assert words.Reader("fr").say("stalled") == "stalled"
    assert words.Reader("zh").say("stalled") == "卡住"


def test_column_of_runs_has_its_title() -> None:
    assert "Run" in incident_table([], words.Reader("en"), {})
    assert "任务" in incident_table([], words.Reader("zh"), {})


def test_chinese_runs_table_has_chinese_units() -> None:
    row = RunRow(
        "r",
        "training",
        step=100.0,
        total_steps=350.0,
        step_seconds=1.04,
        stalled_seconds=90.0,
        started_at=0.0,
    )
    (shown,) = table([row], words.Reader("zh", now=3600.0), {})["rows"]
    assert {"1.04 秒", "4 分 20 秒", "1 分 30 秒", "1 小时"} <= set(shown["cells"])
