"""Packs: packaged pages that are loaded on request, and pages that extend others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stallwatch_rules.authoring.checking import check_catalogue
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import folder_of_pack, load_catalogue, packs

WritePage = Callable[..., Path]

MXNET = "src/storage/./pooled_storage_manager.h:157: Memory allocation failed"
EXTENSION = """---
extends: {rule}
patterns:
  - 'the attic is full'
---

# In other words

```log {kind}
the attic is full of books
```
"""


@pytest.mark.parametrize("name", packs())
def test_the_packs_are_sound(name: str) -> None:
    catalogue = load_catalogue([folder_of_pack(name)])
    assert [str(problem) for problem in check_catalogue(catalogue)] == []
    assert any(page.extensions for page in catalogue.pages.values())


def test_wordings_of_other_frameworks_are_found_with_their_pack_only() -> None:
    assert Matcher(load_catalogue()).match_text(MXNET) == []
    with_pack = Matcher(load_catalogue([folder_of_pack("other-frameworks")]))
    assert {rule for _, rule, _ in with_pack.match_text(MXNET)} == {"cuda-oom"}


def _extend(pages: Path, rule: str, kind: str = "fires") -> Path:
    path = pages / "memory" / f"{rule}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXTENSION.format(rule=rule, kind=kind), encoding="utf-8")
    return path


def test_a_page_of_ones_own_may_extend_another(write_page: WritePage, tmp_path: Path) -> None:
    write_page("no-room")
    path = _extend(tmp_path / "more", "no-room")
    page = load_catalogue([tmp_path / "more", tmp_path / "pages"]).pages["no-room"]
    assert page.patterns[-1] == "the attic is full"
    assert [part.path for part in page.parts][1:] == [str(path)]


def test_an_extension_is_checked_by_its_own_samples(write_page: WritePage, tmp_path: Path) -> None:
    write_page("no-room")
    path = _extend(tmp_path / "more", "no-room", kind="quiet")
    problems = load_catalogue([tmp_path / "more", tmp_path / "pages"]).problems
    assert [(problem.path, problem.message) for problem in problems] == [
        (str(path), "no sample that must fire the rule")
    ]
    path.write_text(path.read_text() + "\n```log fires\nthere is room\n```\n", encoding="utf-8")
    found = check_catalogue(load_catalogue([tmp_path / "more", tmp_path / "pages"]))
    assert [(problem.path, problem.line) for problem in found] == [(str(path), 13), (str(path), 9)]


def test_an_extension_of_no_page_is_a_problem(tmp_path: Path) -> None:
    path = _extend(tmp_path / "more", "no-such-rule")
    (problem,) = load_catalogue([tmp_path / "more"]).problems
    assert (problem.path, problem.message) == (str(path), "extends the unknown rule 'no-such-rule'")


def test_a_missing_pack_is_a_problem() -> None:
    (problem,) = load_catalogue([folder_of_pack("no-such-pack")]).problems
    assert "no such folder of rule pages" in problem.message


def test_a_faulty_extension_is_reported_and_the_page_that_it_extends_stays(
    write_page: WritePage, tmp_path: Path
) -> None:
    write_page("no-room")
    path = _extend(tmp_path / "more", "no-room")
    path.write_text(
        path.read_text().replace("the attic is full'", "the attic \\C is full'"), encoding="utf-8"
    )
    catalogue = load_catalogue([tmp_path / "more", tmp_path / "pages"])
    assert {problem.path for problem in catalogue.problems} == {str(path)}
    assert (
        catalogue.pages["no-room"].patterns == load_catalogue([tmp_path / "pages"]).pages["no-room"].patterns
    )
