"""Impact judged by progress: pure functions over intervals."""

from __future__ import annotations

import math
import random

import pytest
from msgspec.structs import replace

from stallwatch_rules.judgements.facts import RunFacts, Trace, judge_recovery
from stallwatch_rules.judgements.loss_scale import ScaleFacts, judge_overflow
from stallwatch_rules.judgements.standstill import judge_silence
from stallwatch_rules.judgements.step_time import (
    as_quick,
    judge_step_time,
    judge_throughput,
    slowdown,
    slowed_from,
    steady_shift,
)
from stallwatch_rules.judgements.trace_cache import cost_per_step, judge_trace_cache
from stallwatch_rules.locale import render
from stallwatch_rules.progress.timeline import Interval, StreamTimelines, counts_in_intervals
from stallwatch_rules.records import Line, Sample


def trace(*intervals: tuple[float | None, int], tail: int = 0, first_step: int = 1) -> Trace:
    """Return a trace with one interval per step: its seconds and its matches."""
    return Trace(
        [(Interval(1, first_step + i, None, seconds), hits) for i, (seconds, hits) in enumerate(intervals)],
        tail,
    )


STANDS = RunFacts(advances=50, stalled=True, silence=300.0, threshold=40.0)
TIMED_OUT = RunFacts(advances=50, timed_out=True)
GOES_ON = RunFacts(advances=50)


def test_messages_followed_by_steps_are_harmless() -> None:
    quiet = [(1.0, 0)] * 5
    assert judge_trace_cache(trace(*quiet, (1.0, 3), *quiet), GOES_ON).harm == "harmless"
    assert judge_trace_cache(trace(*[(None, 2)] * 20), GOES_ON).harm == "harmless"


def test_message_after_the_last_step_is_undecided() -> None:
    assert judge_trace_cache(trace((1.0, 0), tail=1), GOES_ON).harm == "by-progress"
    assert judge_trace_cache(trace(tail=1), GOES_ON).harm == "by-progress"


def test_cost_is_the_difference_of_the_medians() -> None:
    costly = trace((9.0, 0), *[(0.4, 0), (0.6, 1)] * 10)
    assert cost_per_step(costly) == (0.6, 0.4, 10, 10)
    assert "the difference is about 0.2 s (" in render(judge_trace_cache(costly, GOES_ON).note)
    free = judge_trace_cache(trace(*[(0.4, 0), (0.4, 1)] * 10), GOES_ON)
    assert "no measurable time" in render(free.note)
    assert cost_per_step(trace((0.4, 0), (0.6, 1), (0.4, 0))) is None


def test_slower_steps_with_more_messages_are_degrading() -> None:
    judgement = judge_trace_cache(trace(*[(1.0, 0)] * 30, *[(2.0, 2)] * 20), GOES_ON)
    assert judgement.harm == "degrading"
    assert "1 s at first" in render(judgement.note)
    assert "2 s in the last steps" in render(judgement.note)


def test_gradually_slower_steps_with_more_messages_are_degrading() -> None:
    growing = [(0.25 * (1 + step / 100), step // 50) for step in range(300)]
    assert judge_trace_cache(trace(*growing), GOES_ON).harm == "degrading"
    assert slowdown([seconds for seconds, _ in growing]) is None, "nothing else says so"


def test_slower_steps_with_constant_messages_are_harmless() -> None:
    assert judge_trace_cache(trace(*[(1.0, 1)] * 30, *[(2.0, 1)] * 20), GOES_ON).harm == "harmless"


@pytest.mark.parametrize("facts", [STANDS, TIMED_OUT])
def test_messages_until_a_stall_are_fatal(facts: RunFacts) -> None:
    assert judge_trace_cache(trace(*[(1.0, 1)] * 20), facts).harm == "fatal"
    assert judge_trace_cache(trace(*[(1.0, 0)] * 20, tail=1), facts).harm == "fatal"
    assert judge_trace_cache(trace(*[(1.0, 1), (1.0, 0), (1.0, 0)] * 6), facts).harm == "fatal"


def test_few_messages_followed_by_steps_are_harmless() -> None:
    seldom = [(1.0, 1), *[(1.0, 0)] * 11] * 3
    assert judge_trace_cache(trace(*seldom, (1.0, 1)), STANDS).harm == "harmless"
    assert judge_trace_cache(trace(*[(1.0, 0)] * 29, (1.0, 1)), STANDS).harm == "harmless"
    rising = trace(*seldom, *[(1.0, 1)] * 5)
    assert judge_trace_cache(rising, STANDS).harm == "fatal" and "more" in render(
        judge_trace_cache(rising, STANDS).note
    )


def test_messages_are_not_a_cause_if_the_missing_rank_is_known() -> None:
    """Nothing in the code that prints the message waits for another rank; it may only cost time."""
    for facts in (STANDS, TIMED_OUT):
        missed = replace(facts, missed=True)
        assert judge_trace_cache(trace(*[(1.0, 1)] * 20), missed).harm == "harmless"
        assert judge_trace_cache(trace(*[(1.0, 0)] * 20, tail=1), missed).harm == "harmless"
        assert judge_trace_cache(trace(*[(1.0, 0)] * 20, *[(1.0, 1)] * 10), missed).harm == "harmless"
        slower = judge_trace_cache(trace(*[(1.0, 0)] * 30, *[(2.0, 2)] * 20), missed)
        assert slower.harm == "degrading" and "2 s in the last steps" in render(slower.note)


@pytest.mark.parametrize("before", [[1], [1, 20, 40], [10, 59], [30]])
@pytest.mark.parametrize("tail", [1, 2])
def test_message_without_a_later_step_is_fatal(before: list[int], tail: int) -> None:
    steps = [(1.0, int(step in before)) for step in range(1, 61)]
    for facts in (STANDS, TIMED_OUT):
        assert judge_trace_cache(trace(*steps, tail=tail), facts).harm == "fatal"


def test_messages_that_stopped_earlier_are_harmless() -> None:
    stopped = trace(*[(1.0, 1)] * 10, *[(1.0, 0)] * 40)
    judgement = judge_trace_cache(stopped, STANDS)
    assert judgement.harm == "harmless"
    assert "40" in render(judgement.note)
    assert judge_trace_cache(trace(*[(1.0, 0)] * 10), STANDS).harm == "by-progress"


def test_another_failure_or_a_successful_end_makes_messages_harmless() -> None:
    messages = trace(*[(1.0, 1)] * 20)
    other = RunFacts(advances=20, timed_out=True, failed_otherwise=True)
    assert judge_trace_cache(messages, other).harm == "harmless"
    assert judge_trace_cache(messages, RunFacts(stalled=True, complete=True)).harm == "harmless"


def test_steps_with_more_tokens_are_not_slower() -> None:
    assert as_quick([900.0] * 20 + [880.0] * 5)
    assert not as_quick([900.0] * 20 + [600.0] * 5) and not as_quick([900.0] * 9)


def test_slowdown_must_be_large_and_lasting() -> None:
    assert slowdown([1.0] * 40 + [1.6] * 10) == (1.0, 1.6, 10)
    assert slowdown([1.0] * 40 + [1.4] * 10) is None
    assert slowdown([1.0] * 40 + [3.0] * 3) is None, "three slow steps may be an evaluation"
    assert slowdown([1.0] * 40 + [3.0] * 20 + [1.0] * 6) is None, "it recovered"
    assert slowdown([9.0, 9.0] + [1.0] * 8) is None, "too few steps for a baseline"
    assert slowdown([5.0, 5.0] + [1.0] * 40) is None, "the warm-up is no baseline"


def test_varying_steps_are_not_slow() -> None:
    rollouts = [1.0, 1.2, 4.0, 1.1, 3.8] * 8
    assert slowdown([*rollouts, 3.0, 3.5, 4.0, 3.2, 3.9, 3.3]) is None


def test_step_time_finding_contains_the_slowdown() -> None:
    judgement = judge_step_time([1.0] * 40 + [2.0] * 10, GOES_ON)
    assert judgement is not None
    assert (judgement.harm, "100%" in render(judgement.note)) == ("degrading", True)
    assert judge_step_time([1.0] * 50, GOES_ON) is None


def test_lower_throughput_is_a_slowdown() -> None:
    even = [1000.0 + at % 7 for at in range(40)]
    judgement = judge_throughput(even + [480.0 + at % 5 for at in range(12)], GOES_ON)
    assert judgement is not None and judgement.harm == "degrading"
    assert "481.5 in the last 12 steps" in render(judgement.note)
    assert judge_throughput(even, GOES_ON) is None
    assert judge_throughput([item - 5 * at for at, item in enumerate(even)], GOES_ON) is None, (
        "little by little"
    )
    assert judge_throughput([*even, 400.0, 410.0], GOES_ON) is None, "not for long enough"
    assert judge_throughput([], GOES_ON) is None


def test_silence_is_a_stall() -> None:
    found = judge_silence(STANDS)
    assert found is not None
    assert found.harm == "fatal"
    assert "5 min," in render(found.note)
    assert "40 s" in render(found.note)
    assert judge_silence(RunFacts(stalled=True, complete=True)) is None
    stalled = RunFacts(stalled=True, silence=300.0, ended=True, aborted=True)
    aborted = judge_silence(stalled)
    assert aborted is not None and "when Stallwatch ended the run" in render(aborted.note)
    assert judge_silence(RunFacts(silence=300.0)) is None


def test_recovery_needs_more_steps_if_the_run_failed() -> None:
    assert judge_recovery(2, False, GOES_ON) is None
    some, often = judge_recovery(3, False, GOES_ON), judge_recovery(3, True, GOES_ON)
    assert (some and some.harm, often and often.harm) == ("harmless", "degrading")
    died = RunFacts(died=True)
    assert judge_recovery(9, False, died) is None
    assert judge_recovery(10, False, died) is not None


@pytest.mark.parametrize(
    ("overflows", "scale", "harm"),
    [
        (trace((1.0, 1), (1.0, 1), (1.0, 1), tail=1), ScaleFacts(4096.0), "harmless"),
        (trace(*[(1.0, 1)] * 6, *[(1.0, 0)] * 200), ScaleFacts(512.0), "harmless"),
        (trace(*[(1.0, 0)] * 200, *[(1.0, 1)] * 4), ScaleFacts(8.0), "fatal"),
        (trace(*[(1.0, 0)] * 3, *[(1.0, 1)] * 4, first_step=374), ScaleFacts(8.0), "fatal"),
        (trace(*[(1.0, 0)] * 5, tail=1), ScaleFacts(1.0), "fatal"),
        (trace(*[(1.0, 1), (1.0, 1), (1.0, 0)] * 40), ScaleFacts(64.0), "fatal"),
        (trace(*[(1.0, 1), *[(1.0, 0)] * 4] * 40), ScaleFacts(64.0), "degrading"),
        (trace(*[(1.0, 1), *[(1.0, 0)] * 400]), ScaleFacts(1.0), "harmless"),
        (trace(tail=8), ScaleFacts(512.0, skipped=8, steps=510), "harmless"),
    ],
    ids=[
        "start",
        "start, then long good",
        "row at the end",
        "excerpt",
        "minimum",
        "mostly",
        "often",
        "once at minimum, long ago",
        "by the trainer's count",
    ],
)
def test_overflows_are_judged_by_number_and_scale(overflows: Trace, scale: ScaleFacts, harm: str) -> None:
    assert judge_overflow(overflows, scale, GOES_ON).harm == harm


def test_every_judgement_has_chinese_text() -> None:
    chinese = RunFacts(advances=50, stalled=True, silence=300.0, threshold=40.0)
    assert "没有新的 step" in render(judge_trace_cache(trace(*[(1.0, 1)] * 20), chinese).note, "zh")


# ---- timelines


def sample(step: int | None, time: float | None = None, **values: float) -> Sample:
    bar = values.pop("bar", None)
    total = int(bar) if bar is not None else None
    series = f"bar {total}" if total else "text step"
    return Sample(None, time, step, total, values, from_bar=total is not None, series=series)


def line(time: float | None = None) -> Line:
    return Line("x", "run.log", 1, None, time)


def test_matches_belong_to_the_next_step() -> None:
    stream = StreamTimelines()
    stream.hit("r", line())
    stream.see(sample(1))
    stream.see(sample(2))
    stream.hit("r", line())
    stream.hit("r", line())
    stream.see(sample(3))
    stream.hit("r", line())
    main = stream.main
    assert main is not None
    assert [interval.hits.get("r", 0) for interval in main.intervals] == [1, 0, 2]
    assert main.open_hits == {"r": 1}


def test_restart_is_an_advance_and_a_repeated_step_is_not() -> None:
    stream = StreamTimelines()
    for step in (1, 2, 2, 3, 10, 1, 2):
        stream.see(sample(step))
    assert stream.advances == 12  # 1, 2, 3, up to 10, then 1, 2


def test_bar_of_an_evaluation_is_not_the_training() -> None:
    stream = StreamTimelines()
    for step in range(4):
        stream.see(sample(step, bar=100))
        for batch in range(10):
            stream.see(sample(batch, bar=10))
    main = stream.main
    assert main is not None
    assert main.last_step == 3


def test_lines_without_a_time_share_the_next_time() -> None:
    stream = StreamTimelines()
    for step, time in ((1, 10.0), (2, 10.0), (3, 10.0), (4, 16.0)):
        stream.see(sample(step, time))
    main = stream.main
    assert main is not None
    assert [interval.pace for interval in main.intervals] == [None, None, None, 2.0]


def test_memory_for_many_steps_is_bounded() -> None:
    stream = StreamTimelines()
    for step in range(1, 5001):
        if step % 5 == 0:
            stream.hit("r", line())
        stream.see(sample(step, float(step)))
    main = stream.main
    assert main is not None
    assert len(main.intervals) <= 1000
    assert sum(interval.span for interval in main.intervals) == 5000
    assert sum(interval.hits.get("r", 0) for interval in main.intervals) == 1000
    assert {interval.pace for interval in main.intervals[1:]} == {1.0}


def test_times_are_assigned_to_steps_of_another_stream() -> None:
    intervals = [Interval(1, n, float(n), 1.0) for n in (1, 2, 3)]
    assert counts_in_intervals(intervals, [0.5, 1.5, 1.6, 3.5]) == [1, 2, 0, 1]
    assert counts_in_intervals([Interval(1, 1, None, None)], [0.5]) is None


def test_step_time_near_the_limit_does_not_flap() -> None:
    baseline = [0.99, 1.01, 1.0, 1.0] * 10
    assert slowdown(baseline + [1.45] * 20) is None, "never above the limit"
    assert slowdown(baseline + [1.6] * 10) is not None
    assert slowdown(baseline + [1.6] * 10 + [1.45] * 6) is not None, "slow a moment ago, and nearly so now"
    assert slowdown(baseline + [1.6] * 10 + [1.45] * 30) is None, "long over"
    assert slowdown(baseline + [1.6] * 10 + [1.2] * 6) is None, "below the lower limit"


@pytest.mark.parametrize("spread", [0.1, 0.4, 0.8, 1.0])
def test_independent_steps_of_any_variance_are_not_slow(spread: float) -> None:
    draw = random.Random(4)
    for _ in range(8):
        paces = [draw.lognormvariate(0, spread) for _ in range(400)]
        assert all(slowdown(paces[:seen]) is None for seen in range(20, 401, 3))


@pytest.mark.parametrize(("spread", "within"), [(0.02, 20), (0.1, 20), (0.4, 60)])
def test_doubled_step_time_is_soon_found(spread: float, within: int) -> None:
    draw = random.Random(5)
    for _ in range(10):
        paces = [draw.lognormvariate(0, spread) * (2 if step >= 100 else 1) for step in range(100 + within)]
        found = slowdown(paces)
        assert found is not None
        assert found[1] / found[0] == pytest.approx(2, rel=spread) and found[2] <= 1.3 * within
        assert slowdown(paces + [draw.lognormvariate(0, spread) for _ in range(within)]) is None


@pytest.mark.parametrize("alike", [0.5, 0.9])
def test_correlated_steps_are_not_slow(alike: float) -> None:
    draw = random.Random(6)
    for _ in range(5):
        paces, last = [], 0.0
        for _ in range(400):
            last = alike * last + (1 - alike**2) ** 0.5 * draw.gauss(0, 1)
            paces.append(math.exp(0.3 * last))
        assert all(slowdown(paces[:seen]) is None for seen in range(20, 401, 5))


def test_gradually_growing_steps_are_not_slow() -> None:
    draw = random.Random(7)
    paces = [draw.lognormvariate(0, 0.1) * (1 + step / 100) for step in range(400)]
    assert all(slowdown(paces[:seen]) is None for seen in range(20, 401, 5))


def test_slowdown_in_a_long_run_is_found() -> None:
    draw = random.Random(8)
    paces = [draw.lognormvariate(0, 0.3) * (2 if step >= 3000 else 1) for step in range(4000)]
    assert slowdown(paces[:3000]) is None
    found = slowdown(paces)
    assert found is not None and found[2] == pytest.approx(1000, rel=0.2)


def test_small_shift_must_be_significant_and_lasting() -> None:
    even = [10.0, 10.05, 9.98, 10.02] * 10
    assert steady_shift(even + [10.5] * 12) == (pytest.approx(10.01), 10.5, 12)
    assert steady_shift(even + [10.5] * 9) is None, "not for long enough"
    assert steady_shift(even + [10.3] * 12) is None, "too little"
    assert steady_shift([10.0, 11.5, 9.2, 10.9] * 10 + [12.0] * 12) is None, "uneven anyway"
    assert steady_shift(even + [16.0] * 12) is None, "more than a straggler: steps have degraded"
    assert steady_shift([10.0, 10.05, 10.02, 10.5, 10.51]) is None
    assert steady_shift([10.0, 10.05, 10.02, 10.5, 10.51], excerpt=True) is not None


def test_long_run_is_evaluated_in_blocks() -> None:
    found = steady_shift([10.0, 10.04] * 2000 + [10.6] * 2000)
    assert found is not None and 1900 <= found[2] <= 2100


def test_start_of_a_slowdown_is_found() -> None:
    paces = [1.0] * 40 + [5.0] + [1.0] * 9 + [2.6] * 20 + [1.0] + [2.6] * 19
    assert slowed_from(paces, 1.0, 2.6) == 50
    assert slowed_from([1.0] * 50 + [3.0, 2.0, 3.0, 3.0] * 5, 1.0, 3.0) == 50
