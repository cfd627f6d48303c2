"""A silent hang whose stacks were taken: the place first, and no advice to find it out."""

from __future__ import annotations

import pytest

from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue, load_catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.phrases import primary_note
from stallwatch_rules.stacks.concluding import with_stacks
from stallwatch_rules.stacks.records import StackGroup, StallStacks

STEPS = "".join(f"step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 21))
WAITS = StackGroup([0], "collective", what="all_reduce", place="ddp.py:7 in step")
STUCK = StackGroup([1], "code", place="ddp.py:5 in reward_fn")
SILENT = StackGroup([1], "unknown")
RIDDLES = ("py-spy", "Nothing in the log says why", "日志没有说明原因")


@pytest.fixture(scope="module")
def known() -> Catalogue:
    return load_catalogue()


def stood(known: Catalogue, stacks: StallStacks, language: str) -> Diagnosis:
    reading = RunReading(known)
    reading.feed(lines_of(STEPS))
    return with_stacks(reading.diagnose(stalled=True, language=language), stacks, language)


def told(found: Diagnosis) -> str:
    assert found.primary is not None and found.primary.rule == "silent-hang-no-error"
    return "\n".join([primary_note(found), found.primary.why, *found.primary.fixes])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_odd_ranks_place_comes_before_advice_to_find_it(known: Catalogue, language: str) -> None:
    found = stood(known, StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1], why="elsewhere"), language)
    assert not any(riddle in told(found) for riddle in RIDDLES)
    assert found.primary is not None and "ddp.py:5" in found.primary.fixes[0]
    assert len(found.primary.fixes) > 2, "what the page says of other ranks stays"
    assert with_stacks(found, StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1]), language) == found, "once"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_single_process_waits_for_no_other_rank(known: Catalogue, language: str) -> None:
    found = stood(known, StallStacks(0.0, 0.1, [StackGroup([0], "code", place=STUCK.place)]), language)
    assert not any(word in told(found) for word in (*RIDDLES, "does not arrive", "没有到达", "all_gather"))
    assert "ddp.py:5" in told(found) and "ddp.py:5" in to_brief(found, language)


def test_where_a_rank_did_not_tell_its_stack_is_still_to_be_taken(known: Catalogue) -> None:
    found = stood(known, StallStacks(0.0, 0.1, [WAITS, SILENT], odd=[1]), "en")
    assert "py-spy dump" in told(found)
