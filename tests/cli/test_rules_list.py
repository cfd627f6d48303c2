"""``stallwatch rules list`` for readers and for programs."""

from __future__ import annotations

import io
from collections.abc import Callable

from click.testing import Result
from rich.console import Console

from stallwatch.cli.rules import print_tables
from stallwatch_rules.pages.catalogue import load_catalogue

Stallwatch = Callable[..., Result]


def test_output_to_a_pipe_has_one_line_per_rule(stallwatch: Stallwatch) -> None:
    rows = [line.split("\t") for line in stallwatch("rules", "list").stdout.splitlines()]
    pages = load_catalogue().pages
    assert {row[0] for row in rows} == set(pages)
    assert {len(row) for row in rows} == {6}
    assert rows == sorted(rows, key=lambda row: (row[1], row[0]))


def test_list_can_be_filtered(stallwatch: Stallwatch) -> None:
    rows = stallwatch("rules", "list", "--family", "memory", "--family", "stalls").stdout.splitlines()
    assert {row.split("\t")[1] for row in rows} == {"memory", "stalls"}
    assert stallwatch("rules", "list", "--status", "retired").stdout == ""
    wrong = stallwatch("rules", "list", "--family", "memry")
    assert wrong.exit_code == 2
    assert "did you mean memory?" in wrong.stderr


def test_terminal_shows_a_table_per_family_at_any_width() -> None:
    pages = sorted(load_catalogue().pages.values(), key=lambda page: (page.family, page.id))
    for width in (60, 80, 200):
        out = io.StringIO()
        print_tables(pages, Console(file=out, width=width))
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        if width >= 80:
            assert all(any(line.startswith(page.id) for line in text.splitlines()) for page in pages)
        assert text.startswith(f"{pages[0].family} (")
