"""The project's own corpus: logs of real programs get the diagnosis of their injected fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scoreboard import OWN, cases, outcome

from stallwatch_rules.pages.catalogue import Catalogue

CASES = [case for folder in OWN for case in cases(folder)]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_diagnosis_matches_the_label(case: tuple[str, str, Path], catalogue: Catalogue) -> None:
    said = outcome(case, catalogue)
    assert said.right, f"labelled {said.label}, said {said.verdict} {said.primary} ({sorted(said.found)})"


def test_all_collectable_cases_are_in_the_corpus() -> None:
    from corpus_cases import CASES as collected

    rows = [json.loads(line) for line in (OWN[0] / "cases.jsonl").read_text().splitlines()]
    assert [(row["id"], row["signature"]) for row in rows] == [(c.name, c.signature) for c in collected]
    logs = {path.name for path in (OWN[0] / "logs").iterdir()}
    assert {Path(row["file"]).name for row in rows} == logs


def test_logs_are_small_and_do_not_name_the_machine() -> None:
    for path in (OWN[0] / "logs").iterdir():
        text = path.read_text()
        assert len(text) < 200_000, path
        for word in ("/home/", "/root", "/tmp/", "/Users/"):
            assert word not in text, f"{path}: {word}"
