"""The catalogue for people: search, trial and draft."""

from __future__ import annotations

from typing import get_args

import pytest

from stallwatch_dashboard import rule_search
from stallwatch_dashboard.words import Reader
from stallwatch_rules.authoring.drafting import DraftError
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import Status
from stallwatch_rules.records import Harm, Role

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity"


@pytest.fixture(scope="module")
def matcher(catalogue: Catalogue) -> Matcher:
    return Matcher(catalogue)


def test_empty_search_lists_all_rules(catalogue: Catalogue, matcher: Matcher) -> None:
    assert len(rule_search.search(catalogue, matcher, " ")) == len(catalogue.pages)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_field_value_has_a_translation(language: str) -> None:
    """A custom page may have a status, a role or an impact that no packaged page has."""
    say = Reader(language).say
    for field, kinds in (("status", Status), ("role", Role), ("harm", Harm)):
        for kind in get_args(kinds):
            assert say("judged_by_progress" if kind == "by-progress" else f"{field}_{kind}")


def test_title_matches_rank_before_body_matches(catalogue: Catalogue, matcher: Matcher) -> None:
    found = [page.id for page in rule_search.search(catalogue, matcher, "trace cache")]
    assert found[0] == "zero3-trace-cache-invalidated"
    assert rule_search.search(catalogue, matcher, "no page of this world says xyzzy") == []


def test_pasted_message_finds_its_rule(catalogue: Catalogue, matcher: Matcher) -> None:
    assert rule_search.search(catalogue, matcher, OOM)[0].id == "cuda-oom"


def test_family_filter_restricts_the_search(catalogue: Catalogue, matcher: Matcher) -> None:
    found = rule_search.search(catalogue, matcher, "", ["memory"])
    assert found and {page.family for page in found} == {"memory"}


def test_pattern_is_tested_line_by_line() -> None:
    trial = rule_search.try_pattern(r"scale is (?P<scale>\d+)", "scale is 4\nnothing\n[rank1]: scale is 16\n")
    assert trial.fault is None and trial.lines == 3
    assert [(hit.number, hit.captures) for hit in trial.hits] == [(1, {"scale": "4"}), (3, {"scale": "16"})]


def test_invalid_pattern_is_reported_with_the_reason() -> None:
    trial = rule_search.try_pattern(r"(?<=x)y", "xy")
    assert trial.fault is not None and "look-around" in trial.fault.remedy


def test_captures_and_lines_contain_no_secret() -> None:
    token = "hf_" + "aB3" * 12
    trial = rule_search.try_pattern(r"token (?P<token>\S+)", f"token {token}")
    assert token not in trial.hits[0].line + trial.hits[0].captures["token"]


FAILED = """step 1 loss 2.5
Traceback (most recent call last):
  File "/opt/train/rewards.py", line 31, in score
    raise BrokenLedger("the ledger of rewards has 12 pages, 14 were promised")
rewards.BrokenLedger: the ledger of rewards has 12 pages, 14 were promised
"""


def test_unknown_failure_is_drafted(catalogue: Catalogue) -> None:
    proposal = rule_search.draft_of(FAILED, catalogue, since="1.0")
    assert proposal.problems(f"{proposal.family}/{proposal.rule}.md") == []
    assert "status: incubating" in proposal.text and r"(?P<number_1>\d+)" in proposal.text


def test_known_failure_is_not_drafted(catalogue: Catalogue) -> None:
    with pytest.raises(DraftError, match="cuda-oom"):
        rule_search.draft_of(OOM, catalogue, since="1.0")
