"""The catalogue loads valid pages, reports invalid ones, and its digest follows the patterns."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_rules.pages import catalogue as module
from stallwatch_rules.pages.catalogue import load_catalogue

WritePage = Callable[..., Path]

ROOT = Path(__file__).parents[3]
PACKAGES = ("alerts", "dashboard", "exporter", "lint", "logs", "rules", "stallwatch")
MOST_NAMED = 20  #: largest number of rules that code may name by their ids: rules that it raises itself


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    return tmp_path / "pages"


def test_packaged_pages_load_without_problems() -> None:
    catalogue = load_catalogue()
    assert [str(problem) for problem in catalogue.problems] == []
    assert len(catalogue.pages) >= 20


def test_every_packaged_page_has_two_quiet_samples() -> None:
    too_few = [
        page.id
        for page in load_catalogue().pages.values()
        if sum(len(text.splitlines()) for text in page.quiet) < 2
    ]
    assert too_few == []


def test_code_refers_to_rules_by_tags() -> None:
    """Code names only rules that it raises itself; a tag selects all others."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 400
    texts = {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert len(texts & load_catalogue().pages.keys()) <= MOST_NAMED


def test_custom_pages_are_added_to_the_packaged_ones(write_page: WritePage, pages: Path) -> None:
    write_page("my-rule")
    catalogue = load_catalogue([pages])
    assert catalogue.pages["my-rule"].title == "No room"
    assert set(catalogue.pages) == {*load_catalogue().pages, "my-rule"}


def test_invalid_page_is_reported_and_the_others_load(write_page: WritePage, pages: Path) -> None:
    write_page("good")
    bad = write_page("bad", role="villain", harm="none")
    catalogue = load_catalogue([pages])
    assert "good" in catalogue.pages
    assert "bad" not in catalogue.pages
    assert [(problem.path, problem.line) for problem in catalogue.problems] == [(str(bad), 6), (str(bad), 7)]


def test_duplicate_page_id_is_reported(write_page: WritePage, pages: Path) -> None:
    first = write_page("twice", family="a-family", title="first")
    second = write_page("twice", family="b-family", title="second")
    catalogue = load_catalogue([pages])
    (problem,) = catalogue.problems
    assert catalogue.pages["twice"].title == "first"
    assert (problem.path, problem.line) == (str(second), 2)
    assert str(first) in problem.message


@pytest.mark.parametrize(
    ("explained", "message"),
    [("missing-rule", "unknown rule 'missing-rule'"), ("my-rule", "cannot explain itself")],
)
def test_explained_rules_must_exist(write_page: WritePage, pages: Path, explained: str, message: str) -> None:
    path = write_page("my-rule", explains=[explained])
    (problem,) = load_catalogue([pages]).problems
    assert message in problem.message
    assert path.read_text().split("\n")[problem.line - 1].startswith("explains:")


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    (problem,) = load_catalogue([tmp_path / "nowhere"]).problems
    assert "nowhere" in problem.path


def test_invalid_utf8_is_reported_with_its_line(write_page: WritePage, pages: Path) -> None:
    path = write_page("broken")
    path.write_bytes(path.read_bytes().replace("空间不足".encode(), b"\xff\xfe"))
    (problem,) = load_catalogue([pages]).problems
    assert (problem.message, problem.line) == ("not UTF-8 text", 4)


def test_other_files_in_the_folder_are_not_pages(write_page: WritePage, pages: Path) -> None:
    write_page("good")
    for name in ("README.md", "_draft.md", ".hidden.md", "notes.txt"):
        (pages / "memory" / name).write_text("not a page")
    assert load_catalogue([pages]).problems == []


def test_edited_page_is_reloaded(write_page: WritePage, pages: Path) -> None:
    write_page("edited", title="before")
    before = load_catalogue([pages])
    write_page("edited", title="after!")
    assert before.pages["edited"].title == "before"
    assert load_catalogue([pages]).pages["edited"].title == "after!"


def test_digest_depends_only_on_patterns(write_page: WritePage, pages: Path) -> None:
    write_page("my-rule", patterns=["one"])
    first = load_catalogue([pages]).digest
    write_page("my-rule", patterns=["one"], title="Other words")
    assert load_catalogue([pages]).digest == first
    write_page("my-rule", patterns=["two"])
    assert load_catalogue([pages]).digest != first


def test_pattern_refused_by_hyperscan_affects_only_its_page(
    write_page: WritePage, pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hyperscan")
    write_page("good")
    pattern = r"one\Cbyte"
    bad = write_page("bad", patterns=["fine", pattern])
    fault = module.pattern_fault
    assert fault(pattern, quick=True) is None
    looked: list[str] = []
    monkeypatch.setattr(module, "pattern_fault", lambda item: looked.append(item) or fault(item))
    catalogue = load_catalogue([pages])
    assert looked == ["out of room", "fine", pattern]  # no packaged page
    assert "good" in catalogue.pages
    assert "bad" not in catalogue.pages
    assert [problem.path for problem in catalogue.problems] == [str(bad)]
    assert "hyperscan" in catalogue.problems[0].message


def test_mutual_explanations_are_reported(write_page: WritePage, pages: Path) -> None:
    write_page("first", patterns=["one"], explains=["second"])
    write_page("second", patterns=["two"], explains=["third", "fourth"])
    path = write_page("third", patterns=["three"], explains=["first"])
    write_page("fourth", patterns=["four"])
    catalogue = load_catalogue([pages])
    (problem,) = catalogue.problems
    assert problem.message == "the rules explain each other in a cycle: first → second → third → first"
    assert {"first", "second", "third", "fourth"} <= set(catalogue.pages)
    path.write_text(path.read_text().replace('["first"]', "[]"))
    assert load_catalogue([pages]).problems == []
