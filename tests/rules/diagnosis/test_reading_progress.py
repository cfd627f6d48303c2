"""How progress changes the findings of a run: stalls, trace-cache messages, slow steps, overflows."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate

import pytest
from smallruns import OOM, STAND, START, finding, primary, raised, stamped, steps

from stallwatch_rules.records import Diagnosis

Diagnose = Callable[..., Diagnosis]

TRACE = "Invalidate trace cache @ step 12: expected module 7, but got module 3"


# ---- stalls


def hang(silence: float, *, pace: float = 2.0, count: int = 20) -> list[tuple[float, str]]:
    rows = [(pace * step, f"step {step}/500 loss 1.5") for step in range(1, count + 1)]
    return [*rows, (pace * count + silence, "the health check still finds the process alive")]


def test_silence_longer_than_usual_is_a_stall(diagnose: Diagnose) -> None:
    diagnosis = diagnose(stamped(hang(3000)))
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "silent-hang-no-error")
    assert diagnosis.progress.stalled_after_step == 20
    assert diagnosis.primary is not None
    assert diagnosis.primary.step == 20
    assert diagnose(stamped(hang(20))).verdict == "unfinished"
    assert diagnose(stamped(hang(90, pace=60))).verdict == "unfinished", "slow steps are this run's rhythm"


def test_silence_like_an_earlier_one_is_not_a_stall(diagnose: Diagnose) -> None:
    rows = [(2.0 * step, f"step {step} loss 1.5") for step in range(1, 400)]
    rows += [(2.0 * step + 600, f"step {step} loss 1.5") for step in range(400, 800)]
    rows.append((2.0 * 800 + 1200, "evaluating"))
    assert diagnose(stamped(rows)).verdict == "unfinished"


def test_run_that_prints_after_a_silence_did_not_hang(diagnose: Diagnose) -> None:
    rows = [(2.0 * step, f"step {step} loss 1.5") for step in range(1, 30)]
    rows += [(1500 + line, f"answer {line}: 0.5") for line in range(9)]
    assert diagnose(stamped(rows)).verdict == "unfinished"


def test_stall_reported_live_is_used(diagnose: Diagnose) -> None:
    text = stamped(hang(1)[:-1])
    diagnosis = diagnose(text, stalled=True, now=START.timestamp() + 500, threshold=60.0)
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "silent-hang-no-error")
    assert "threshold of this run is 1 min." in finding(diagnosis, "silent-hang-no-error").note
    assert diagnose(text, now=START.timestamp() + 50, threshold=60.0).verdict == "healthy"


def test_actor_that_died_before_a_stall_is_named(diagnose: Diagnose) -> None:
    died = [(60.0, line) for line in raised("RuntimeError: no environment", "/w/actor.py").splitlines()]
    logs = {"actor.log": stamped(died), "learner.log": stamped(hang(600, count=50))}
    note = finding(diagnose(logs), "silent-hang-no-error").note
    assert "RuntimeError: no environment (actor.log:4, step 30)" in note
    long_ago = {"actor.log": stamped(died), "learner.log": stamped(hang(500, count=250))}
    assert "RuntimeError" not in finding(diagnose(long_ago), "silent-hang-no-error").note


def test_known_cause_explains_a_stall(diagnose: Diagnose) -> None:
    diagnosis = diagnose(steps(1, 20) + raised(OOM), stalled=True, threshold=60.0)
    assert (diagnosis.verdict, primary(diagnosis)) == ("stalled", "cuda-oom")


def test_trace_cache_messages_during_steps_are_harmless(diagnose: Diagnose) -> None:
    rows, clock = [], 0.0
    for step in range(1, 41):
        clock += 0.4 if step % 2 else 0.5
        if step % 2 == 0:
            rows.append((clock - 0.1, TRACE))
        rows.append((clock, f"step {step} loss 1.5"))
    diagnosis = diagnose(stamped(rows))
    assert (diagnosis.verdict, diagnosis.primary) == ("unfinished", None)
    found = finding(diagnosis, "zero3-trace-cache-invalidated")
    assert (found.harm, found.count) == ("harmless", 20)
    assert "0.1 s" in found.note
    assert "0.5 s" in found.note


def test_messages_and_steps_of_different_files_are_matched_by_time(diagnose: Diagnose) -> None:
    steps_of = [(float(step), f"step {step}/500 loss 1.5") for step in range(1, 41)]
    messages = [(step - 0.5, TRACE) for step in range(2, 41, 2)]
    logs = {"rank0.stdout.log": stamped(messages), "rank0.stderr.log": stamped(steps_of)}
    found = finding(diagnose(logs), "zero3-trace-cache-invalidated")
    assert (found.harm, "39 steps followed" in found.note) == ("harmless", True)
    logs |= {
        "rank0.stderr.log": stamped([*steps_of, (1800, STAND)]),
        "rank1.stderr.log": stamped([(1800, STAND)]),
    }
    assert primary(diagnose(logs)) == "zero3-trace-cache-invalidated"
    untimed = {name: re.sub(r"(?m)^.* stdout F ", "", text) for name, text in logs.items()}
    assert finding(diagnose(untimed), "zero3-trace-cache-invalidated").harm == "by-progress"


def slowing(count: int = 60) -> list[tuple[float, str]]:
    rows, clock = [], 0.0
    for step in range(1, count + 1):
        late = step > 30
        clock += 2.0 if late else 1.0
        rows += [(clock - 0.1, TRACE)] * (3 if late else 0)
        rows.append((clock, f"step {step}/500 loss 1.5"))
    return rows


def test_trace_cache_messages_with_slower_steps_are_degrading(diagnose: Diagnose) -> None:
    diagnosis = diagnose(stamped(slowing()))
    assert (diagnosis.verdict, primary(diagnosis)) == ("degraded", "zero3-trace-cache-invalidated")
    assert [finding.rule for finding in diagnosis.findings][1] == "step-time-degraded"


def test_trace_cache_messages_before_a_stall_are_fatal(diagnose: Diagnose) -> None:
    rows = slowing()
    live = diagnose(stamped(rows), stalled=True, threshold=30.0, now=START.timestamp() + 500)
    assert (live.verdict, primary(live)) == ("stalled", "zero3-trace-cache-invalidated")
    assert live.progress.stalled_after_step == 60
    waiting = diagnose(stamped(rows), stalled=False, threshold=30.0, now=START.timestamp() + 500)
    assert waiting.verdict == "degraded", "its watch still waits for stacks"
    assert finding(waiting, "zero3-trace-cache-invalidated").harm == "degrading"
    dead = diagnose(stamped([*rows, (2000, STAND)]))
    assert (dead.verdict, primary(dead)) == ("failed", "zero3-trace-cache-invalidated")
    assert dead.primary is not None
    assert dead.primary.confidence <= 0.6
    assert [finding.rule for finding in dead.findings][1] == "collective-timeout"


def test_trace_cache_messages_long_before_a_stall_are_not_its_cause(diagnose: Diagnose) -> None:
    text = f"{TRACE}\n" + steps(1, 80) + f"{STAND}\n"
    diagnosis = diagnose(text)
    assert primary(diagnosis) == "collective-timeout"
    assert finding(diagnosis, "zero3-trace-cache-invalidated").harm == "harmless"


def test_single_trace_cache_line_is_not_a_failure(diagnose: Diagnose) -> None:
    diagnosis = diagnose(f"{TRACE}\n")
    assert (diagnosis.verdict, diagnosis.primary) == ("no-evidence", None)
    assert finding(diagnosis, "zero3-trace-cache-invalidated").harm == "by-progress"


def test_interrupted_slow_bar_without_losses_is_harmless(diagnose: Diagnose) -> None:
    def stopped(loss: str) -> Diagnosis:
        paces = ["20.0it/s"] * 80 + ["1.5s/it"] * 80
        bars = (
            f"{step / 300:4.0%}|##        | {step}/300 [00:09<00:20, {pace}{loss}]"
            for step, pace in enumerate(paces, 1)
        )
        return diagnose("\n".join(bars) + "\n" + raised("KeyboardInterrupt"))

    bars = stopped("")
    assert (bars.verdict, bars.interrupted_by) == ("interrupted", "user")
    assert primary(stopped(", loss=1.5")) == "step-time-degraded"


@pytest.mark.parametrize(
    ("count", "slow", "seconds", "verdict"),
    [
        (80, 40, 5.0, "degraded"),
        (80, 40, 3.0, "finished"),  # as with a schedule of batch sizes or sequence lengths
        (400, 16, 5.0, "finished"),  # only a few steps
        (400, 16, 12.0, "degraded"),
    ],
)
def test_slow_steps_of_a_finished_run_count_if_they_cost_much_time(
    count: int, slow: int, seconds: float, verdict: str, diagnose: Diagnose
) -> None:
    paces = [1.0] * (count - slow) + [seconds] * slow
    rows = list(enumerate(accumulate(paces), 1))
    half = stamped([(at, f"step {step}/900 loss {9 / step:.4f}") for step, at in rows])
    assert (diagnose(half).verdict, primary(diagnose(half))) == ("degraded", "step-time-degraded")
    whole = stamped([(at, f"step {step}/{count} loss {9 / step:.4f}") for step, at in rows])
    assert diagnose(whole).verdict == verdict


def overflow(scale: int, to: int) -> str:
    return (
        "[2026-05-02 09:00:00,000] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 "
        f"Skipping step. Attempted loss scale: {scale}, reducing to {to}\n"
    )


def test_overflows_at_the_start_are_calibration(diagnose: Diagnose) -> None:
    text = "".join(overflow(65536 >> n, 32768 >> n) for n in range(4))
    assert finding(diagnose(text), "fp16-overflow-every-step").harm == "harmless"
    assert diagnose(text + steps(1, 90)).verdict == "unfinished"


def test_overflows_on_every_step_are_fatal(diagnose: Diagnose) -> None:
    text = steps(1, 60) + "".join(overflow(64 >> n, 32 >> n) + steps(61 + n, 61 + n) for n in range(5))
    assert primary(diagnose(text)) == "fp16-overflow-every-step"
    assert primary(diagnose(steps(1, 60) + overflow(1, 1))) == "fp16-overflow-every-step"


@pytest.mark.parametrize(
    ("name", "mean", "tokens", "verdict"),
    [
        ("perf/throughput", False, 1.0, "degraded"),
        ("perf/throughput", False, 1.6, "unfinished"),
        ("tokens/s", False, 1.0, "degraded"),
        ("tokens/s", False, 1.1, "degraded"),
        ("tokens/s", False, 1.4, "degraded"),  # the rate can be a mean since the start
        ("tokens/s", False, 1.6, "unfinished"),
        ("tokens/s", True, 1.0, "degraded"),  # the mean since the start falls slowly
        ("tokens/s", True, 1.6, "unfinished"),
    ],
)
def test_longer_steps_with_more_tokens_are_not_slower(
    name: str, mean: bool, tokens: float, verdict: str, diagnose: Diagnose
) -> None:
    """verl's rollouts grow while a model learns to reason: its steps take longer, and do as much a second."""
    lines, seconds, done = [], 0.0, 0.0
    for step in range(1, 61):
        slow, more = (1.6, tokens) if step > 45 else (1.0, 1.0)
        seconds, done = seconds + slow, done + more
        rate = done / seconds if mean else more / slow
        metrics = f"perf/time_per_step:{200 * slow} - {name}:{1000 * rate}"
        lines.append(f"step:{step} - actor/pg_loss:0.01 - {metrics}")
    assert diagnose("\n".join(lines)).verdict == verdict


def test_steps_of_a_curriculum_are_not_slower(diagnose: Diagnose) -> None:
    """The sequence length doubles four times, and the cost of a step grows a little faster."""
    rows, at, step = [], 0.0, 0
    for length, count, seconds in ((256, 80, 0.12), (512, 60, 0.25), (1024, 40, 0.6), (2048, 25, 1.4)):
        for _ in range(count):
            at, step = at + seconds, step + 1
            row = f"step {step}/900 loss {9 / step:.4f} tokens/s={length * 8 / seconds:.0f}"
            rows.append((at, row))
            if step > 100 and step % 15 == 0:
                assert diagnose(stamped(rows)).verdict == "unfinished", step


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ("step={0}, skipped={0}, lr=[1e-05], mom=[0.9]\nloss: 2.5", "failed"),
        ("step={0}, skipped={1}, lr=[1e-05], mom=[0.9]\nloss: 2.5", "unfinished"),
        ("step {0} loss 2.5 skipped {0} lr 1e-4", "unfinished"),  # of samples, for all that is known
        ("step={0}, skipped={0}, loss=2.5", "unfinished"),
    ],
)
def test_only_the_count_of_the_engine_counts_steps(row: str, verdict: str, diagnose: Diagnose) -> None:
    text = "\n".join(row.format(step, 900) for step in range(1, 60))
    assert diagnose(text).verdict == verdict
