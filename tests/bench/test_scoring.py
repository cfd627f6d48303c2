"""Counts of the scoreboard."""

from __future__ import annotations

from scoring import (
    Claim,
    Outcome,
    Share,
    by_family,
    calibration,
    claims,
    confusions,
    expected_error,
    failures,
    share,
    wrong_alarms,
)


def outcome(label: str, verdict: str, primary: str | None = None, confidence: float = 0.9) -> Outcome:
    return Outcome("case", label, verdict, primary, confidence, frozenset({primary} - {None}))


OOM = outcome("cuda-oom", "failed", "cuda-oom", 0.95)
WRONG = outcome("cuda-oom", "failed", "nccl-collective-timeout", 0.95)
MISSED = outcome("cuda-oom", "healthy", None)
ALARM = outcome("benign:omp-num-threads-notice", "failed", "cuda-oom", 0.6)
QUIET = outcome("healthy", "healthy")
FAMILIES = {"cuda-oom": "memory", "nccl-collective-timeout": "collectives"}


def test_failure_is_right_if_its_rule_is_primary() -> None:
    assert [item.right for item in (OOM, WRONG, MISSED)] == [True, False, False]
    assert str(share([OOM, WRONG, MISSED])) == "1/3 (33.3%)"
    assert str(share([])) == "No cases"


def test_healthy_case_is_right_without_an_alarm() -> None:
    assert QUIET.right and not ALARM.right
    assert outcome("benign:loss-scale-warmup", "degraded", "fp16-overflow-every-step").right
    assert wrong_alarms([OOM, ALARM, QUIET]) == [ALARM]
    assert failures([OOM, ALARM, QUIET, outcome("failed", "failed")]) == [OOM]


def test_labels_without_a_rule_are_scored_by_verdict() -> None:
    assert outcome("unknown", "unknown-failure").right
    assert not outcome("unknown", "failed", "cuda-oom").right
    assert outcome("failed", "stalled").right and not outcome("failed", "healthy").right


def test_rule_judged_by_progress_must_be_found_without_another_blame() -> None:
    rule = "zero3-trace-cache-invalidated"
    assert Outcome("case", rule, "healthy", None, 0.0, frozenset({rule})).right
    assert outcome(rule, "stalled", rule).right
    assert not outcome(rule, "healthy").right
    assert not Outcome("case", rule, "failed", "cuda-oom", 0.9, frozenset({rule, "cuda-oom"})).right


def test_precision_counts_claims_and_recall_counts_cases_of_a_family() -> None:
    scores = {item.family: item for item in by_family([OOM, WRONG, MISSED, ALARM, QUIET], FAMILIES)}
    assert scores["memory"].precision == Share(1, 2)  # its own case and the false alarm
    assert scores["memory"].recall == Share(1, 3)
    assert scores["collectives"].precision == Share(0, 1)
    assert scores["collectives"].recall == Share(0, 0)


def test_calibration_counts_wrong_alarms_in_their_bin() -> None:
    bins = {item.low: item.score for item in calibration(claims([OOM, WRONG, MISSED, ALARM, QUIET]))}
    assert bins == {0.9: Share(1, 2), 0.7: Share(0, 0), 0.5: Share(0, 1), 0.0: Share(0, 0)}


def test_calibration_error_weights_the_gap_of_each_bin() -> None:
    sure = [Claim(str(number), 0.9, number < 8) for number in range(10)]
    assert round(expected_error(sure), 3) == 0.1
    assert round(expected_error([*sure, *(Claim("x", 0.5, True) for _ in range(10))]), 3) == 0.3
    assert expected_error([]) == 0.0


def test_halves_are_split_by_the_hash_of_the_name() -> None:
    assert [Claim(name, 0.9, True).frozen for name in ("a", "1", "b", "0")] == [False, True, False, True]


def test_confusions_are_sorted_by_frequency() -> None:
    assert confusions([OOM, WRONG, MISSED, MISSED]) == [
        ("cuda-oom", "healthy", 2),
        ("cuda-oom", "nccl-collective-timeout", 1),
    ]


def test_share_has_a_wilson_interval() -> None:
    low, high = Share(117, 145).interval
    assert (round(low, 3), round(high, 3)) == (0.735, 0.863)
    assert Share(0, 20).interval[0] == 0.0 and round(Share(0, 20).interval[1], 3) == 0.161
    assert Share(20, 20).interval[1] == 1.0
    assert round(Share(10, 10).interval[0], 4) == 0.7225
    assert round(Share(990, 1000).interval[0], 4) == 0.9817
    assert Share(0, 0).interval == (0.0, 1.0) and Share(0, 0).measured == "No cases"
    assert Share(1, 2).measured == "1/2 = 50.0% [9.5%, 90.5%]"
