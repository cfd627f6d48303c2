"""Headline of the Post-mortem page."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from stallwatch_dashboard.verdict import of_diagnosis
from stallwatch_dashboard.words import Reader
from stallwatch_rules.messages import message
from stallwatch_rules.records import Diagnosis, Place, Primary, Progress, UnknownException, Verdict


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_every_verdict_has_a_headline(verdict: Any) -> None:
    assert of_diagnosis(Diagnosis(verdict), {}, Reader("zh")).headline


@pytest.mark.parametrize(("language", "word"), [("en", "rank 3"), ("zh", "rank 3 远早于其他 rank 停止")])
def test_ranks_that_ended_early_are_a_warning(language: str, word: str) -> None:
    diagnosis = Diagnosis("healthy", progress=Progress(last_step=900, behind=[3]))
    found = of_diagnosis(diagnosis, {}, Reader(language))
    assert found.level == "warning" and word in found.headline
    diagnosis.verdict = "unknown-failure"  # the run failed before its end
    found = of_diagnosis(diagnosis, {}, Reader(language))
    assert found.level == "critical" and "rank 3" in found.headline.lower()
    alike = of_diagnosis(Diagnosis("healthy"), {}, Reader(language))
    assert (alike.level, alike.headline) == ("good", Reader(language).say("verdict_healthy"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_log_without_an_end_is_a_warning(language: str) -> None:
    diagnosis = Diagnosis("unfinished", progress=Progress(last_step=7, total_steps=9))
    found = of_diagnosis(diagnosis, {}, Reader(language))
    assert found.level == "warning"
    assert "7 of 9" in found.headline or "第 7 步（共 9 步）" in found.headline


def test_unknown_exception_has_its_location_and_advice() -> None:
    place = Place(0, "train.log", 6, None, None, "KeyError: 'label'")
    frames = ["~/data.py:7 in __getitem__"]
    advice = message("diagnosis.advice-key", key="'label'")
    unknown = UnknownException("KeyError", "'label'", [0], 1, place, frames, advice=advice)
    found = of_diagnosis(Diagnosis("unknown-failure", unknown=[unknown]), {}, Reader("en"))
    assert found.headline == "Failed, cause uncertain"  # a cause is given below
    assert found.cause.startswith("KeyError: 'label' (data.py:7)")
    own, key = found.fixes
    assert (
        own.startswith("First look at `~/data.py:7 in __getitem__`") and "The key 'label' is missing" in key
    )


@pytest.mark.parametrize(("confidence", "headline"), [(0.3, "Failed, cause uncertain"), (0.9, "Failed")])
def test_headline_mentions_an_uncertain_cause(confidence: float, headline: str) -> None:
    about: dict[str, Any] = {"role": "wrapper", "harm": "fatal", "rank": 1, "file": "a.log", "line": 1}
    about |= {"time": None, "step": None, "evidence": [], "captures": {}, "why": "", "fixes": []}
    primary = Primary(rule="torchrun-summary", title="Rank 1 failed", confidence=confidence, **about)
    verdict: Verdict = "unknown-failure" if confidence < 0.5 else "failed"
    found = of_diagnosis(Diagnosis(verdict, primary), {}, Reader("en"))
    assert (found.headline, found.cause) == (headline, "Rank 1 failed")
    unexplained = of_diagnosis(Diagnosis("unknown-failure"), {}, Reader("en"))
    assert (unexplained.headline, unexplained.cause) == ("Failed, cause unknown", "")


@pytest.mark.parametrize(
    ("last", "closed", "headline"),
    [
        (60, False, "Finished at step 60 of 100"),
        (60, True, "Finished, nothing wrong found"),  # the log says that the training is complete
        (99, False, "Finished, nothing wrong found"),
    ],
)
def test_early_finish_is_not_reported_as_good(last: int, closed: bool, headline: str) -> None:
    progress = Progress(last_step=last, total_steps=100, finished=closed)
    found = of_diagnosis(Diagnosis("finished", progress=progress), {}, Reader("en"))
    assert found.headline == headline
    assert (found.level == "quiet") == bool(found.facts) == ("60 of" in headline)
