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
def test_packs_are_valid(name: str) -> None:
    catalogue = load_catalogue([folder_of_pack(name)])
    assert [str(problem) for problem in check_catalogue(catalogue)] == []
    assert any(page.extensions for page in catalogue.pages.values())


def test_other_frameworks_need_their_pack() -> None:
    assert Matcher(load_catalogue()).match_text(MXNET) == []
    with_pack = Matcher(load_catalogue([folder_of_pack("other-frameworks")]))
    assert {rule for _, rule, _ in with_pack.match_text(MXNET)} == {"cuda-oom"}


def _extend(pages: Path, rule: str, kind: str = "fires") -> Path:
    path = pages / "memory" / f"{rule}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXTENSION.format(rule=rule, kind=kind), encoding="utf-8")
    return path


def test_custom_page_can_extend_another(write_page: WritePage, tmp_path: Path) -> None:
    write_page("no-room")
    path = _extend(tmp_path / "more", "no-room")
    page = load_catalogue([tmp_path / "more", tmp_path / "pages"]).pages["no-room"]
    assert page.patterns[-1] == "the attic is full"
    assert [part.path for part in page.parts][1:] == [str(path)]


def test_extension_is_checked_with_its_samples(write_page: WritePage, tmp_path: Path) -> None:
    write_page("no-room")
    path = _extend(tmp_path / "more", "no-room", kind="quiet")
    problems = load_catalogue([tmp_path / "more", tmp_path / "pages"]).problems
    assert [(problem.path, problem.message) for problem in problems] == [
        (str(path), "the page has no sample on which the rule must fire")
    ]
    path.write_text(path.read_text() + "\n```log fires\nthere is room\n```\n", encoding="utf-8")
    found = check_catalogue(load_catalogue([tmp_path / "more", tmp_path / "pages"]))
    assert [(problem.path, problem.line) for problem in found] == [(str(path), 13), (str(path), 9)]


def test_extension_of_a_missing_page_is_reported(tmp_path: Path) -> None:
    path = _extend(tmp_path / "more", "no-such-rule")
    (problem,) = load_catalogue([tmp_path / "more"]).problems
    assert (problem.path, problem.message) == (str(path), "extends the unknown rule 'no-such-rule'")


def test_missing_pack_is_reported() -> None:
    (problem,) = load_catalogue([folder_of_pack("no-such-pack")]).problems
    assert "no such folder of rule pages" in problem.message


def test_invalid_extension_does_not_affect_its_page(write_page: WritePage, tmp_path: Path) -> None:
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
