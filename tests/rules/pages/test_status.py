"""A page is ``stable`` only if evidence proves its message."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from wordings.search import same_package

from stallwatch_rules.pages.catalogue import Catalogue

PROVING = runpy.run_path(str(Path(__file__).parents[1] / "proving.py"))
LOGS: dict[str, Path] = PROVING["own_logs"]()
PROOFS: dict[str, list[str]] = json.loads(PROVING["FILE"].read_text(encoding="utf-8"))
LEAST_STABLE = 120


def test_stable_pages_are_those_with_a_proof(catalogue: Catalogue) -> None:
    stable = {page.id for page in catalogue.pages.values() if page.status == "stable"}
    assert stable == set(PROOFS), "run tests/rules/proving.py, as its docstring says"
    assert len(stable) >= LEAST_STABLE


def test_proof_is_from_a_package_named_by_the_page(catalogue: Catalogue) -> None:
    for rule, found in PROOFS.items():
        named = [item.package for item in catalogue.pages[rule].emitted_by]
        for package in (item.split()[1] for item in found if item.startswith("wording: ")):
            assert any(same_package(package, name) for name in named), (rule, package)


@pytest.mark.parametrize("log", LOGS)
def test_proven_rules_fire_in_their_log(log: str, catalogue: Catalogue) -> None:
    proven = {rule for rule, found in PROOFS.items() if f"log: {log}" in found}
    assert proven <= PROVING["seen_in"]([LOGS[log]], catalogue)


def test_judged_rules_are_proven_by_logs(catalogue: Catalogue) -> None:
    for rule, found in PROOFS.items():
        if catalogue.pages[rule].judged:
            assert any(item.startswith("log: ") for item in found), rule


def test_only_found_texts_are_proofs(catalogue: Catalogue) -> None:
    place = "/opt/lib/python3.11/site-packages/torch/cuda/__init__.py"
    vendored = place.replace("cuda", "_vendor")
    exact = "CUDA out of memory\\. Tried to allocate 2"
    found = {
        "package": "torch",
        "version": "2.13.0",
        "rules": [
            {"rule": "cuda-oom", "state": "found", "file": place, "pattern": exact},
            {"rule": "npu-oom", "state": "missing", "file": "", "pattern": ""},
            {"rule": "my-own", "state": "found", "file": place, "pattern": exact},
            {
                "rule": "cuda-illegal-memory-access",
                "state": "found",
                "file": place,
                "pattern": "too little to tell",
            },
            {"rule": "cuda-fork-reinit", "state": "found", "file": vendored, "pattern": exact},
        ],
    }
    assert PROVING["proofs"](catalogue, [found], {}) == {
        "cuda-oom": ["wording: torch 2.13.0, torch/cuda/__init__.py"]
    }
