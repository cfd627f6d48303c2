"""Criteria for a changed verdict between two versions that diagnose the same logs."""

from __future__ import annotations

from verdicts import difference

ROW = {
    "case": "one",
    "verdict": "failed",
    "primary": {"rule": "cuda-oom", "rank": 1, "fixes": ["Use smaller batches."], "why": "It is full."},
    "findings": [],
}


def test_equal_row_has_no_difference() -> None:
    assert difference(ROW, {**ROW}) == ([], [])


def test_schema_2_verdict_is_compared_if_both_rows_have_it() -> None:
    assert difference(ROW, {**ROW, "run": "failed"}) == ([], [])
    major, _ = difference({**ROW, "run": "unfinished"}, {**ROW, "run": "finished"})
    assert major == ['run: "unfinished" -> "finished"']


def test_changes_of_verdict_or_root_cause_are_major() -> None:
    primary = {**ROW["primary"], "rank": 2, "why": "Memory is full."}
    major, minor = difference(ROW, {**ROW, "primary": primary, "findings": ["x"]})
    assert major == ["primary.rank: 1 -> 2"]
    assert minor == ['findings: [] -> ["x"]', 'primary.why: "It is full." -> "Memory is full."']
    major, minor = difference(ROW, {**ROW, "verdict": "healthy", "primary": None})
    assert 'verdict: "failed" -> "healthy"' in major and 'primary.rule: "cuda-oom" -> null' in major
