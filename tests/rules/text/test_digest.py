"""Ranks as ranges, durations and times as people read them."""

from __future__ import annotations

import pytest

from stallwatch_rules.locale import duration_text, rendered
from stallwatch_rules.records import Diagnosis, Finding, Place, Primary, UnknownException
from stallwatch_rules.text.digest import fold_ranks, parse_iso, rank_digest
from stallwatch_rules.text.display import iso


@pytest.mark.parametrize(
    ("ranks", "folded"),
    [
        ([], ""),
        ([7], "7"),
        ([0, 1], "0, 1"),
        ([0, 1, 2, 3, 8], "0–3, 8"),
        ([8, 3, 1, 2, 0, 8], "0–3, 8"),
        ([0, 2, 3, 5, 6, 7], "0, 2, 3, 5–7"),
    ],
)
def test_consecutive_ranks_are_folded(ranks: list[int], folded: str) -> None:
    assert fold_ranks(ranks) == folded


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4e-05, "0.04 ms"),
        (0.0834, "83 ms"),
        (0.0996, "0.0996 s"),
        (0.213, "0.213 s"),
        (1.04, "1.04 s"),
        (2.3149, "2.31 s"),
        (5.0, "5 s"),
        (9.96, "9.96 s"),
        (9.996, "10 s"),
        (84, "1 min 24 s"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_times_round_trip_through_iso_format() -> None:
    assert parse_iso(iso(1795217803.25) or "") == 1795217803.25
    assert iso(None) is None
    assert iso(1e300) is None


def ended(
    rule: str, ranks: list[int], minute: int | None, *, role: str = "symptom", harm: str = "fatal"
) -> Finding:
    time = None if minute is None else f"2026-05-02T09:{minute:02}:00.000Z"
    place = Place(ranks[0] if ranks else None, "a.log", 1, time, 9, "text")
    return Finding(rule, f"Title of {rule}", role, harm, len(ranks), ranks, place, place)  # type: ignore[arg-type]


def of(*findings: Finding, unknown: list[UnknownException] | None = None) -> list[str]:
    cause = next((finding for finding in findings if finding.role == "cause"), None)
    primary = None
    if cause is not None:
        primary = Primary(
            cause.rule, cause.title, "cause", "fatal", 0.9, 0, "", 0, None, None, [], {}, "", []
        )
    return rendered(rank_digest(Diagnosis("failed", primary, list(findings), unknown or [])))


def test_digest_begins_with_the_cause_and_shows_delays() -> None:
    timeout = ended("timeout", [0, 1, 2], 20)
    cause = ended("oom", [3], 8, role="cause")
    assert of(timeout, cause) == ["rank 3: Title of oom", "ranks 0–2: Title of timeout, 12 min later"]
    assert of(ended("timeout", [0, 1], None), cause)[1] == "ranks 0, 1: Title of timeout"


def test_no_digest_for_unknown_equal_or_healthy_ranks() -> None:
    assert of() == []
    assert of(ended("timeout", [0, 1], 1)) == []
    assert of(ended("timeout", [0, 1], 1), ended("abort", [0, 1], 1)) == []
    assert of(ended("timeout", [], 1), ended("oom", [3], 8, role="cause")) == []
    assert of(ended("notice", [0], 1, harm="harmless"), ended("oom", [3], 8, role="cause")) == []


def test_unknown_exception_is_first_in_the_digest() -> None:
    place = Place(4, "a.log", 1, None, None, "text")
    unknown = UnknownException("ValueError", "x" * 400, [4], 1, place, [])
    lines = of(ended("timeout", [0, 1], 1), unknown=[unknown])
    assert lines[0].startswith("rank 4: ValueError: xxx")  # no other cause is known
    assert len(lines[0]) < 200
