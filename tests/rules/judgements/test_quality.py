"""Training problems without an error: each judgement on failing series and on simulated healthy ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest
from smallruns import finding

from stallwatch_rules.judgements.conclusions import LOSS_NAN
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.judgements.quality import (
    COLLAPSE,
    EQUAL_REWARDS,
    EVALUATION_FROZEN,
    KL_EXPLOSION,
    RATE_FROZEN,
    judge_quality,
)
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import render
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

Series = Mapping[str, Sequence[float]]
Diagnose = Callable[[str], Diagnosis]
GOES_ON = RunFacts(advances=100)
SEEDS = range(6)


def judged(
    metrics: Series, *, ending: bool = False, facts: RunFacts = GOES_ON, language: str = "en"
) -> dict[str, str]:
    return {
        rule: render(judgement.note, language)
        for rule, judgement in judge_quality(metrics, facts, ending=ending)
    }


def noisy(count: int, curve: Callable[[float], float], noise: float, seed: int) -> list[float]:
    """Simulate a metric: a curve over the run (from 0 to 1) with Gaussian noise."""
    chance = random.Random(seed)
    return [curve(at / count) + chance.gauss(0, noise) for at in range(count)]


def cosine(count: int, top: float = 1e-4, low: float = 0.0, warmup: int = 10) -> list[float]:
    return [
        top * at / warmup
        if at < warmup
        else low + (top - low) * (1 + math.cos(math.pi * (at - warmup) / (count - warmup))) / 2
        for at in range(count)
    ]


def healthy(seed: int) -> dict[str, list[float]]:
    """Simulate a GRPO run that learns: rewards rise, entropy falls to a third, KL grows, some groups tie."""
    chance = random.Random(100 + seed)
    count = 300
    return {
        "reward": noisy(count, lambda at: 0.2 + 0.6 * at, 0.1, seed),
        "reward_std": [0.0 if chance.random() < 0.3 else chance.uniform(0.1, 0.5) for _ in range(count)],
        "entropy": noisy(count, lambda at: 1.2 - 0.8 * at, 0.05, seed + 1),
        "kl": [abs(item) for item in noisy(count, lambda at: 0.3 * at, 0.02, seed + 2)],
        "grad_norm": [abs(item) for item in noisy(count, lambda at: 1.0, 0.3, seed + 3)],
        "learning_rate": cosine(count, 1e-6),
        "loss": noisy(count, lambda at: 0.01, 0.02, seed + 4),
        "eval_loss": noisy(10, lambda at: 2.0 - at, 0.01, seed + 5),
        "eval_accuracy": [round(item, 4) for item in noisy(10, lambda at: 0.5 + 0.3 * at, 0.02, seed + 6)],
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_healthy_run_has_no_findings(seed: int) -> None:
    run = healthy(seed)
    for seen in range(20, 301, 20):
        assert judged({name: values[:seen] for name, values in run.items()}) == {}, seen


# ---- the policy collapses


@pytest.mark.parametrize("seed", SEEDS)
def test_minimal_reward_without_entropy_is_a_collapse(seed: int) -> None:
    reward = noisy(150, lambda at: 0.3 + 0.4 * at, 0.05, seed) + [0.0] * 25
    entropy = noisy(150, lambda at: 1.0 - 0.4 * at, 0.05, seed) + [0.004] * 25
    assert "fell from" in judged({"reward": reward, "entropy": entropy})[COLLAPSE]
    assert COLLAPSE in judged({"reward": reward, "grad_norm": [1.0] * 150 + [1e-4] * 25})
    assert "策略已经崩溃" in judged({"reward": reward, "entropy": entropy}, language="zh")[COLLAPSE]


@pytest.mark.parametrize("seed", SEEDS)
def test_collapse_needs_both_signs_for_some_time(seed: int) -> None:
    rising = noisy(150, lambda at: 0.3 + 0.4 * at, 0.05, seed)
    usual = noisy(175, lambda at: 1.0 - 0.4 * at, 0.05, seed)
    gone = usual[:150] + [0.004] * 25
    floor = rising + [0.0] * 25
    assert judged({"reward": floor, "entropy": usual}) == {}, "harder tasks"
    assert judged({"reward": rising + rising[-25:], "entropy": gone}) == {}, "sure of what is right"
    assert judged({"reward": rising + [0.0] * 15, "entropy": gone[:165]}) == {}, "not for long enough"
    assert judged({"reward": floor + rising[-10:], "entropy": gone + [0.004] * 10}) == {}, "it recovered"
    assert judged({"reward": [0.0] * 175, "entropy": usual}) == {}, "it was never any better"
    noise = noisy(300, lambda _: 0.5, 0.3, seed)
    assert judged({"reward": noise, "entropy": [1.0] * 100 + [0.001] * 200}) == {}, "no trend"


# ---- all rewards are equal


def test_equal_rewards_are_reported() -> None:
    worst = {"reward": [-1.0] * 200, "reward_std": [0.0] * 200}
    assert "In the last 200 steps" in judged(worst)[EQUAL_REWARDS]
    forgotten = {"reward": [0.5] * 8 + [0.0] * 400, "reward_std": [0.1] * 8 + [0.0] * 400}
    assert EQUAL_REWARDS in judged(forgotten)
    verl = {
        "reward": [0.5, 0.7] * 4 + [-1.0] * 25,
        "advantage_min": [-0.5] * 8 + [0.0] * 25,
        "advantage_max": [0.5] * 8 + [0.0] * 25,
    }
    assert EQUAL_REWARDS in judged(verl)
    assert judged(verl | {"advantage_max": [0.1] * 33}) == {}, "distillation learns from another signal"
    assert "NaN or infinite" in judged({"reward": [0.1] * 30 + [math.nan] * 10})[EQUAL_REWARDS]
    fell = {"reward": [0.8, 0.6] * 20 + [0.1] * 20, "reward_std": [0.2] * 40 + [0.0] * 20}
    assert EQUAL_REWARDS in judged(fell)


@pytest.mark.parametrize(
    ("reward", "spread", "why"),
    [
        ([1.0] * 40, [0.0] * 40, "solved from the first step on"),
        ([0.1 + 0.02 * at for at in range(45)] + [1.0] * 30, [0.3] * 45 + [0.0] * 30, "solved"),
        ([-1.0] * 30 + [0.0] * 30, [0.2] * 30 + [0.0] * 30, "no penalty any more"),
        ([-1.0] * 150, [0.0] * 150, "nobody has earned any yet"),
        ([0.0] * 400, [0.0] * 400, "a penalty that none of the answers earned"),
        (
            [*[0.3 + at / 200 for at in range(100)], *[1.2] * 2, *[0.9] * 60],
            [*[0.2] * 102, *[0.0] * 60],
            "as good as it gets, but for two outliers",
        ),
        ([0.5] * 8 + [0.0] * 19, [0.1] * 8 + [0.0] * 19, "not for long enough"),
        ([0.5] * 8 + [0.0] * 40, [0.1] * 8 + [0.0] * 39 + [0.1], "one group with a spread"),
        ([0.5, 0.0] * 40, ([0.1] + [0.0] * 14) * 5 + [0.0] * 5, "seldom, as ever"),
        ([0.5] * 40 + [0.0] * 20, [0.1] * 20 + [0.0] * 15 + [0.1] * 5 + [0.0] * 20, "as long as before"),
    ],
)
def test_healthy_equal_rewards_are_not_reported(reward: list[float], spread: list[float], why: str) -> None:
    assert judged({"reward": reward, "reward_std": spread}) == {}, why
    advantages = {"advantage_min": [-item for item in spread], "advantage_max": spread}
    assert judged({"reward": reward} | advantages) == {}, why


# ---- the KL explodes


@pytest.mark.parametrize("seed", SEEDS)
def test_lasting_explosion_of_kl_is_reported(seed: int) -> None:
    usual = [abs(item) for item in noisy(100, lambda at: 0.2 * at, 0.02, seed)]
    ramp = [1.7**at for at in range(12)]
    assert "rose from" in judged({"kl": usual + ramp + [900.0 + at for at in range(10)]})[KL_EXPLOSION]
    assert "NaN or infinite" in judged({"kl": [*usual, *[math.nan] * 10]})[KL_EXPLOSION]


@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_kl_is_not_reported(seed: int) -> None:
    usual = [abs(item) for item in noisy(100, lambda at: 0.2 * at, 0.02, seed)]
    for kl, why in (
        ([math.nan] * 200, "a metric that is not available"),
        ([*usual, 900.0, *usual], "one spike"),
        ([*usual, *[900.0] * 9], "not for long enough"),
        ([*usual, *[900.0] * 10, *usual[:5]], "it recovered"),
        ([*[0.0] * 40, *[4.0] * 40], "a warm-up, then the KL of a trained policy"),
        (noisy(200, lambda at: 30 * at, 1.0, seed), "summed over long answers, it grows"),
        ([*usual[:30], *[900.0] * 12], "too short a run to know what is usual"),
        ([item * 1e-3 for item in usual] + [1.0] * 20, "a thousand times so much, and still small"),
    ):
        assert judged({"kl": kl}) == {}, why


# ---- the learning rate does not change


def test_constant_zero_learning_rate_is_reported() -> None:
    loss = [2.0, 2.1] * 15
    assert "All 30 learning rates" in judged({"learning_rate": [0.0] * 30, "loss": loss})[RATE_FROZEN]
    ended = cosine(60) + [0.0] * 25
    assert "not near its end" in judged({"learning_rate": ended, "loss": loss})[RATE_FROZEN]


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        (cosine(100), "a cosine to its end"),
        ([*cosine(60), *[0.0] * 10], "some steps beyond the schedule"),
        ([1e-5 * min(at, 10) for at in range(300)], "constant after its warm-up"),
        ([1e-4] * 300, "constant"),
        ([*cosine(100, low=1e-5), *[1e-5] * 100], "a cosine to its lowest rate"),
        ([*[1e-4 - 3e-7 * at for at in range(300)], *[1e-5] * 100], "linear, to a tenth"),
        ([*[1e-4 - 5e-7 * at for at in range(80)], *[6e-5] * 120], "linear, to more than half"),
        ([1e-3] * 100 + [1e-4] * 100 + [1e-5] * 100, "in steps"),
        ([0.0] * 15, "a warm-up that has just begun"),
        ([0.001, 0.0009, 0.0007, 0.0004, 0.0002, *[0.0] * 30], "rounded"),
        ([1e-4 * (1 - (at % 50) / 50) for at in range(200)], "cyclic"),
    ],
)
def test_healthy_learning_rates_are_not_reported(rates: list[float], why: str) -> None:
    loss = noisy(len(rates), lambda _: 2.0, 0.05, 1)
    assert judged({"learning_rate": rates, "loss": loss}) == {}, why


def test_zero_rate_at_the_end_is_not_reported() -> None:
    zeros = {"learning_rate": [0.0] * 30, "loss": [2.0, 2.1] * 15}
    assert judged(zeros, ending=True) == {}
    assert judged(zeros, facts=RunFacts(advances=100, complete=True)) == {}
    falling = {"learning_rate": [0.0] * 30, "loss": [3.0 - 0.05 * at for at in range(30)]}
    assert judged(falling) == {}, "a small rate that was rounded"


# ---- evaluations never change


def test_equal_evaluations_are_reported() -> None:
    loss = noisy(100, lambda at: 2.0 - at, 0.05, 1)
    assert "All 5 evaluations" in judged({"eval_loss": [0.69315] * 5, "loss": loss})[EVALUATION_FROZEN]
    both = {"eval_loss": [0.6231] * 8, "eval_accuracy": [0.6838] * 8}
    assert EVALUATION_FROZEN in judged({**both, "loss": loss})
    assert judged({**both, "eval_accuracy": [0.6838, *[0.6912] * 7], "loss": loss}) == {}


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("eval_loss", [0.69315] * 4, "not often enough"),
        ("eval_loss", [0.69] * 12, "two digits"),
        ("eval_loss", [1.2, *[0.69315] * 10], "it was another once"),
        ("eval_loss", [0.6931] * 7, "four digits, not often enough"),
        ("eval_accuracy", [0.0] * 50, "nothing solved yet"),
        ("eval_accuracy", [0.68382352941176] * 50, "one class for everything, or few samples"),
    ],
)
def test_healthy_evaluations_are_not_reported(name: str, values: list[float], why: str) -> None:
    loss = noisy(100, lambda at: 2.0 - at, 0.05, 1)
    assert judged({name: values, "loss": loss}) == {}, why
    falling = {"eval_loss": [0.9 - at / 200 for at in range(50)], "eval_accuracy": [0.68382352941176] * 50}
    assert judged({**falling, "loss": loss}) == {}, "its loss changes"
    assert judged({name: [0.69315] * 20, "loss": [0.7] * 100}) == {}, "the loss stands: another rule's"


# ---- losses


@pytest.mark.parametrize(
    "loss",
    [
        [-9000 - 30 * at**1.5 for at in range(60)],
        [-15000 - 10 * 1.2**at for at in range(30)],
        [-20000 / (1 + math.exp((60 - at) / 10)) for at in range(61)],
    ],
    ids=["flow", "elbo", "log-likelihood"],
)
def test_accelerating_fall_of_a_loss_is_not_reported(loss: list[float]) -> None:
    assert judged({"loss": loss}) == {}


def test_nan_evaluations_are_reported() -> None:
    assert "last 3 evaluations" in judged({"eval_loss": [2.0, *[math.nan] * 3]})["nan-loss"]
    assert judged({"eval_loss": [2.0, math.nan, math.nan]}) == {}
    assert judged({"eval_loss": [*[math.nan] * 5, 2.0]}) == {}


# ---- whole logs


@pytest.fixture
def diagnose(catalogue: Catalogue, matcher: Matcher) -> Diagnose:
    def ask(text: str) -> Diagnosis:
        reading, reader = RunReading(catalogue, matcher), LineReader("run.log")
        reading.feed([*reader.feed(text.encode()), *reader.finish()])
        return reading.diagnose()

    return ask


def test_grpo_log_with_zero_rewards_is_diagnosed(diagnose: Diagnose) -> None:
    log = "".join(
        f"{{'loss': 0.0, 'grad_norm': 0.1, 'learning_rate': {1e-6 - 1e-9 * at},"
        f" 'reward': {0.25 if at < 10 else 0.0}, 'reward_std': {0.3 if at < 10 else 0.0},"
        f" 'entropy': {0.5 + at % 7 / 100}, 'epoch': {at / 100:.2f}}}\n"
        for at in range(40)
    )
    diagnosis = diagnose(log)
    assert diagnosis.verdict == "degraded"
    assert finding(diagnosis, "rl-rewards-all-equal").harm == "degrading"
    assert diagnosis.primary is not None and diagnosis.primary.rule == "rl-rewards-all-equal"


def evaluated(times: int, printed: int) -> str:
    lines = []
    for at in range(10 * times):
        lines.append(f"{{'loss': {2 - at / 100}, 'learning_rate': 1e-05, 'epoch': {at / 10:.2f}}}\n")
        if at % 10 == 9:
            lines += [f"{{'eval_loss': 0.69315, 'eval_runtime': 1.{again}}}\n" for again in range(printed)]
    return "".join(lines)


def test_evaluation_printed_by_several_ranks_counts_once(diagnose: Diagnose) -> None:
    assert finding(diagnose(evaluated(5, 1)), "evaluation-frozen").harm == "degrading"
    assert all(finding.rule != "evaluation-frozen" for finding in diagnose(evaluated(4, 4)).findings)


def test_log_of_evaluations_only_is_diagnosed(diagnose: Diagnose) -> None:
    log = "".join(
        f"{{'eval_loss': nan, 'eval_runtime': 171.{at}, 'epoch': {at}.0}}\n" * 2 for at in range(1, 4)
    )
    found = finding(diagnose(log), LOSS_NAN)
    assert found.harm == "degrading" and "last 3 evaluations" in render(found.note)
