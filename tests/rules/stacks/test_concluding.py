"""A silent hang with sampled stacks: the place comes first, and no fix asks the user to find it."""

from __future__ import annotations

import pytest
from smallruns import FAILED

from stallwatch_rules.locale import render, rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Primary
from stallwatch_rules.report.brief import to_brief
from stallwatch_rules.report.phrases import primary_note
from stallwatch_rules.stacks.concluding import NO_RANK, ranks_elsewhere, with_advice, with_stacks
from stallwatch_rules.stacks.records import StackGroup, StallStacks

STEPS = "".join(f"step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 21))
WAITS = StackGroup([0], "collective", what="all_reduce", place="ddp.py:7 in step")
STUCK = StackGroup([1], "code", place="ddp.py:5 in reward_fn")
SILENT = StackGroup([1], "unknown")
SEARCHES = ("Find the rank", "monitored_barrier", "找出没有打印")
RIDDLES = ("py-spy", "Nothing in the log says why", "日志里找不到卡住的原因")


def stalled(catalogue: Catalogue, stacks: StallStacks) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(STEPS))
    return with_stacks(reading.diagnose(stalled=True), stacks, catalogue)


def texts_of(found: Diagnosis, language: str = "en") -> str:
    assert found.primary is not None and found.primary.rule == "silent-hang-no-error"
    texts = [primary_note(found), found.primary.why, *found.primary.fixes]
    return "\n".join(render(text, language) for text in texts)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_location_of_the_odd_rank_replaces_advice_to_find_it(catalogue: Catalogue, language: str) -> None:
    found = stalled(catalogue, StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1], why="elsewhere"))
    assert not any(riddle in texts_of(found, language) for riddle in RIDDLES)
    assert found.primary is not None and "ddp.py:5" in render(found.primary.fixes[0], language)
    assert len(found.primary.fixes) > 2, "what the page says of other ranks stays"
    assert with_stacks(found, StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1]), catalogue) == found, "once"


GLOO = (
    "[rank0]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv"
    " operation to complete\n"
)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("file", ["", "stacks-1.txt"])
def test_timeout_refers_to_the_rank_in_the_stacks(catalogue: Catalogue, language: str, file: str) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of("".join(f"[rank0]: {line}\n" for line in STEPS.splitlines()) + GLOO))
    stacks = StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1], why="elsewhere", file=file)
    found = with_stacks(reading.diagnose(ending=FAILED), stacks, catalogue)
    primary = found.primary
    assert primary is not None and primary.rule == "gloo-collective-timeout"
    shown = rendered(primary, language)
    assert (primary.rank, primary.file) == (1, "")
    blame = {"en": ": rank 1 holds up the run at ddp.py:5", "zh": "：卡在 rank 1（ddp.py:5"}[language]
    assert (
        blame in shown.title
        and shown.title == to_brief(found, language).partition(": ")[2].partition("\n")[0]
    )
    assert "ddp.py:5" in shown.evidence[0] and "ddp.py:5" in shown.fixes[0]
    assert sum("ddp.py:5" in fix for fix in shown.fixes) == 1
    assert not any(word in fix for fix in shown.fixes for word in SEARCHES), "the rank is found"
    assert with_stacks(found, stacks, catalogue) == found, "once"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_single_process_waits_for_no_other_rank(catalogue: Catalogue, language: str) -> None:
    found = stalled(catalogue, StallStacks(0.0, 0.1, [StackGroup([0], "code", place=STUCK.place)]))
    assert not any(
        word in texts_of(found, language) for word in (*RIDDLES, "does not arrive", "没有到达", "all_gather")
    )
    assert "ddp.py:5" in texts_of(found, language) and "ddp.py:5" in to_brief(found, language)


def test_missing_stack_is_still_advised(catalogue: Catalogue) -> None:
    found = stalled(catalogue, StallStacks(0.0, 0.1, [WAITS, SILENT], odd=[1]))
    assert "py-spy dump" in texts_of(found)


JOINS = StackGroup([0], "joining", what="init_process_group", place="train.py:5 in main")
INVALIDATED = "Invalidate trace cache @ step 10: expected module 28, but got module 20\n"


@pytest.mark.parametrize(("language", "advised"), [("en", "MASTER_ADDR"), ("zh", "MASTER_ADDR")])
def test_joining_ranks_wait_for_missing_ranks(catalogue: Catalogue, language: str, advised: str) -> None:
    stacks = StallStacks(0.0, 0.1, [JOINS])
    found = stalled(catalogue, stacks)
    assert advised in texts_of(found, language) and "train.py:5" in texts_of(found, language)
    assert not any(
        word in texts_of(found, language) for word in (*RIDDLES, "data loader", "TORCH_NCCL_TRACE")
    )
    late = StallStacks(0.0, 0.1, [JOINS, STUCK], odd=[1], why="elsewhere")
    assert advised not in texts_of(stalled(catalogue, late), language), "the other one is here"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_ended_rank_is_reported_as_ended(catalogue: Catalogue, language: str) -> None:
    gone = StackGroup([1], "unknown", condition="ended")
    stacks = StallStacks(0.0, 0.1, [WAITS, gone], odd=[1], why="ended")
    found = stalled(catalogue, stacks)
    assert not any(
        word in texts_of(found, language) for word in (*RIDDLES, "data loader", "TORCH_NCCL_TRACE")
    )
    assert found.primary is not None and "SIGKILL" in render(found.primary.fixes[1], language)


def test_launcher_without_ranks_is_reported_in_both_languages(catalogue: Catalogue) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of("W1122 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"))
    found = with_advice(reading.diagnose(stalled=True), NO_RANK)
    assert "has not started any rank" in texts_of(found) and "--rdzv-endpoint" in texts_of(found)
    assert "启动器还没有启动任何 rank" in texts_of(found, "zh")
    untouched = reading.diagnose()
    assert with_advice(untouched, NO_RANK) == untouched


def test_cause_in_the_log_has_no_advice_to_take_stacks(catalogue: Catalogue) -> None:
    def at(stacks: StallStacks) -> Primary:
        reading = RunReading(catalogue)
        steps = [f"step {step}/60 loss {2 / step:.4f}\n{INVALIDATED}" for step in range(1, 21)]
        reading.feed(lines_of("".join(steps)))
        primary = with_stacks(reading.diagnose(stalled=True), stacks, catalogue).primary
        assert primary is not None and primary.rule == "zero3-trace-cache-invalidated"
        return primary

    both = [WAITS, StackGroup([1], "collective", what="barrier", place="ddp.py:9 in step")]
    primary = at(StallStacks(0.0, 0.1, both, odd=[0, 1], why="diverged", file="stacks-1.txt"))
    fixes = rendered(primary.fixes)
    assert "ddp.py:9" in fixes[0] and "stacks-1.txt" in fixes[0] and len(set(fixes)) == len(fixes) > 3
    assert not any("py-spy dump" in fix for fix in fixes)
    assert render(primary.title).endswith(": ranks 0, 1 took different paths")
    assert any(
        "py-spy dump" in render(fix) for fix in at(StallStacks(0.0, 0.1, [WAITS, SILENT], odd=[1])).fixes
    )


@pytest.mark.parametrize("often", [1, 20])
def test_trace_cache_is_not_the_cause_if_a_rank_is_in_user_code(catalogue: Catalogue, often: int) -> None:
    stacks = StallStacks(0.0, 0.1, [WAITS, STUCK], odd=[1], why="elsewhere")
    reading = RunReading(catalogue)
    lines = [f"step {n}/60 loss {2 / n:.4f}\n{INVALIDATED * (often if n > 12 else 1)}" for n in range(1, 21)]
    reading.feed(lines_of("".join(lines)))
    before = reading.diagnose(stalled=True)
    assert before.primary is not None and before.primary.rule == "zero3-trace-cache-invalidated"
    assert ranks_elsewhere(stacks) == [1] and not ranks_elsewhere(None)
    found = with_stacks(reading.diagnose(stalled=True, elsewhere=[1]), stacks, catalogue)
    assert "ddp.py:5" in texts_of(found)
    assert [finding.harm for finding in found.findings if finding.rule == before.primary.rule] == ["harmless"]
