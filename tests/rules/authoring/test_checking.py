"""Every sample on every page behaves as its fence declares; a wrong sample is detected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaged import CATALOGUE

from stallwatch_rules.authoring.checking import check_catalogue, check_page
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.pages.page import RulePage, parse_page

PageText = Callable[..., str]


@pytest.mark.parametrize("rule", sorted(CATALOGUE.pages))
def test_samples_of_every_packaged_page_pass(rule: str) -> None:
    problems = check_page(CATALOGUE.pages[rule], CATALOGUE)
    assert [str(problem) for problem in problems] == []


def test_packaged_catalogue_has_no_problems() -> None:
    assert [str(problem) for problem in check_catalogue(CATALOGUE)] == []


@pytest.fixture
def page_of(page_text: PageText) -> Callable[..., RulePage]:
    def make(rule: str = "no-room", **front: object) -> RulePage:
        return parse_page(page_text(id=rule, **front), f"memory/{rule}.md")

    return make


MakePage = Callable[..., RulePage]


def test_valid_page_has_no_problems(page_of: MakePage) -> None:
    assert check_page(page_of()) == []


def test_fires_sample_without_a_match_is_reported(page_of: MakePage) -> None:
    page = page_of(fires=("out of room", "room enough\nand to spare"))
    (problem,) = check_page(page)
    assert problem.message == "the rule does not fire on the 'log fires' sample 2"
    assert (problem.path, problem.line) == ("memory/no-room.md", page.fires_at[1])


def test_quiet_sample_with_a_match_is_reported(page_of: MakePage) -> None:
    page = page_of(quiet=("fine", "fine\nnow out of room"))
    (problem,) = check_page(page)
    assert problem.message == "the rule fires on the 'log quiet' sample 2 (on line 2 of the sample)"
    assert problem.line == page.quiet_at[1]


def test_samples_are_read_like_logs(page_of: MakePage) -> None:
    assert check_page(page_of(patterns=["^out of room"], fires=("[rank7]: out of room",))) == []


def test_samples_respect_context_conditions(page_of: MakePage) -> None:
    context = {"requires": ["big model"], "unless": ["a joke"]}
    assert (
        check_page(
            page_of(
                **context,
                fires=("out of room\nbig model",),
                quiet=("out of room", "big model out of room: a joke"),
            )
        )
        == []
    )
    assert len(check_page(page_of(**context, fires=("out of room",)))) == 1


def test_both_languages_have_the_same_fixes(page_text: PageText) -> None:
    text = page_text().replace("2. 减少用量。\n", "")
    (problem,) = check_page(parse_page(text, "memory/no-room.md"))
    assert problem.message == "2 fixes in English, but 1 in Chinese"


def test_samples_of_a_retired_rule_are_checked(page_of: MakePage) -> None:
    assert check_page(page_of(status="retired")) == []
    wrong = page_of(status="retired", fires=("nothing",))
    assert len(check_page(wrong)) == 1
    assert len(check_catalogue(Catalogue.of([wrong]))) == 1


def test_duplicate_pattern_is_reported(page_of: MakePage) -> None:
    (problem,) = check_catalogue(Catalogue.of([page_of("one"), page_of("two")]))
    assert "is also a pattern of one" in problem.message
    assert problem.path == "memory/two.md"
    assert check_catalogue(Catalogue.of([page_of("one"), page_of("two", unless=["x"])])) == []


def test_loading_problems_are_included(write_page: Callable[..., Path], tmp_path: Path) -> None:
    write_page("broken", role="villain")
    write_page("lying", patterns=["never"])
    catalogue = load_catalogue([tmp_path / "pages"])
    assert [Path(problem.path).stem for problem in check_catalogue(catalogue)] == ["broken", "lying"]


def test_judged_rule_is_checked_on_a_whole_run(page_of: MakePage) -> None:
    (page, *_) = [page for page in CATALOGUE.pages.values() if page.judged]
    alone = page_of(patterns=[], fires=tuple(page.quiet))
    problems = check_page(alone, CATALOGUE)
    assert [problem.message for problem in problems] == [
        f"the rule does not fire on the 'log fires' sample {number}"
        for number in range(1, len(page.quiet) + 1)
    ]
