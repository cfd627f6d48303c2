"""Literals of patterns: every match contains one of them."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.literal_index import Literal, literals_of
from stallwatch_rules.pages.catalogue import Catalogue, scanned_rules
from stallwatch_rules.pages.patterns import compile_re2


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Invalidate trace cache @ step (?P<step>\\d+): expected", {"Invalidate trace cache @ step "}),
        ("RuntimeError: (?:CUDA|HIP) error: out of memory", {" error: out of memory"}),
        ("(?:first cause|other reason)", {"first cause", "other reason"}),
        ("(?:begun )?no kernel image", {"no kernel image"}),
        ("a{3,}ccident", {"ccident"}),
    ],
)
def test_best_literal_is_selected(pattern: str, texts: set[str]) -> None:
    cover = literals_of(pattern)
    assert cover is not None and {text.text for text in cover} == texts


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d+ \w+",
        "loss: nan",  # too few letters besides the frequent words
        "(?:out of memory|)",  # one way to match holds no text
        "(?:out of memory)?",
        "(?i)größer als erlaubt",
        r"\pN broken",  # google-re2's own syntax
    ],
)
def test_pattern_without_a_literal_has_none(pattern: str) -> None:
    assert literals_of(pattern) is None


def test_literal_is_caseless_if_the_pattern_is() -> None:
    assert literals_of("(?i)Out Of Memory") == {Literal("Out Of Memory", caseless=True)}
    assert literals_of("(?i:bus error) core dumped to disk") == {Literal(" core dumped to disk")}
    assert literals_of("x(?i:bus failure) of") == {Literal("bus failure", caseless=True)}


def test_long_literal_is_cut_at_its_rarest_end() -> None:
    whole = "thermal throttling of the xQzJk_device is in the training"
    (text,) = literals_of(whole) or ()
    assert whole.startswith(text.text)
    assert "xQzJ" in text.text[-8:]
    assert Literal("short text").cut() == Literal("short text")
    assert Literal("显存不足，无法分配更多的显存").cut() == Literal("显存不足，无法分配更多的显存")


def test_every_matching_sample_contains_a_literal(catalogue: Catalogue) -> None:
    checked = 0
    for page in scanned_rules(catalogue.pages.values()):
        reader = LineReader("")
        lines = reader.feed("\n".join([*page.fires, *page.quiet, ""]).encode())
        for pattern in (*page.patterns, *page.requires):
            cover = literals_of(pattern)
            expression = compile_re2(pattern)
            for line in lines:
                if cover is not None and expression.search(line.text.encode()) is not None:
                    checked += 1
                    folded = line.text.lower()
                    assert any(
                        text.text.lower() in folded if text.caseless else text.text in line.text
                        for text in cover
                    ), (page.id, pattern, line.text)
    assert checked > 500
