"""The slow host, found by the time that its ranks need before they meet the others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch_rules.judgements.slow_hosts import OVER, WINDOWS, RankStep, SlowHost, SlowHosts, deviations
from stallwatch_rules.stacks.records import RankGroup

Seconds = Callable[[int, int], float]  # of a rank's own work in a step


def named_in(
    own: Seconds,
    hosts: int = 8,
    ranks: int = 1,
    steps: int = 400,
    *,
    tokens: Callable[[int, int], float] = lambda *_: 0.0,
    rest: float = 0.3,
    together: bool = True,
    layout: Iterable[RankGroup] = (),
    least: tuple[float, float] = (0.01, 0.0),
) -> list[tuple[int, SlowHost | None]]:
    """The steps at which the answer changed, with the answer."""
    watched, changes = SlowHosts(*least), list[tuple[int, SlowHost | None]]()
    watched.layout(layout)
    for step in range(steps):
        seconds = [own(rank, step) for rank in range(hosts * ranks)]
        for rank, each in enumerate(seconds):
            whole = (max(seconds) if together else each) + rest
            if watched.see(f"n{rank // ranks}", rank, step, RankStep(each, whole, tokens(rank, step))):
                changes.append((step, watched.slow))
    return changes


def noisy(sigma: float, seed: int = 3) -> Seconds:
    draw = random.Random(seed)
    return lambda *_: 0.7 * math.exp(draw.gauss(0, sigma))


def slow_from(begin: int, share: float, usual: Seconds, *guilty: int, until: int = 10**9) -> Seconds:
    def own(rank: int, step: int) -> float:
        slow = rank in guilty and begin <= step < until
        return usual(rank, step) * (1 + share * slow)

    return own


@pytest.mark.parametrize("hosts", [2, 3, 8, 64])
def test_slow_host_is_named_with_its_cost(hosts: int) -> None:
    ((step, slow),) = named_in(slow_from(100, 0.2, noisy(0.02), 1), hosts)
    assert slow is not None
    assert 103 <= step <= 100 + WINDOWS[1]
    assert (slow.host, slow.rank, slow.kind) == ("n1", 1, "slow")
    assert slow.share == pytest.approx(0.2, abs=0.04)
    assert slow.cost == pytest.approx(0.14 / 1.14, abs=0.03)


@pytest.mark.parametrize("hosts", [2, 3, 16])
def test_larger_slowdown_is_found_sooner(hosts: int) -> None:
    """The slowdown changes the times at one step: it does not make the run noisy."""
    even: Seconds = lambda *_: 0.7  # noqa: E731
    for share in (0.1, 0.3, 1.5, 9.0):
        ((step, slow),) = named_in(slow_from(60, share, even, 1), hosts, steps=90)
        assert slow is not None and slow.host == "n1"
        assert step < 60 + WINDOWS[0]
    ((step, _),) = named_in(slow_from(100, 1.5, noisy(0.02), 1), hosts, steps=200)
    assert step < 100 + WINDOWS[2]


def test_first_steps_do_not_count_as_noise() -> None:
    usual, draw = noisy(0.01), random.Random(2)
    changes = named_in(
        slow_from(60, 0.1, lambda rank, step: usual(rank, step) * (draw.uniform(1, 9) if step < 2 else 1), 1)
    )
    assert changes and changes[0][0] < 60 + WINDOWS[0]


def test_slowdown_of_ten_percent_is_found_in_ten_steps() -> None:
    changes = named_in(slow_from(64, 0.1, noisy(0.03), 5), 128, steps=80)
    assert [slow and slow.host for _, slow in changes] == ["n5"]
    assert changes[0][0] < 64 + 10


def test_slowdown_in_strong_noise_is_found_later() -> None:
    ((step, slow),) = named_in(slow_from(64, 0.1, noisy(0.2), 5), 16, steps=900)
    assert slow is not None and slow.host == "n5"
    assert step > 150


@pytest.mark.parametrize(("guilty", "rank"), [((9,), 9), ((8, 9, 10, 11), None), ((8, 9, 10), None)])
def test_late_rank_is_distinguished_from_a_late_host(guilty: tuple[int, ...], rank: int | None) -> None:
    changes = named_in(slow_from(100, 0.3, noisy(0.02), *guilty), 4, 4, 130)
    assert [(slow.host, slow.rank) for _, slow in changes if slow is not None] == [("n2", rank)]


def test_slow_host_that_keeps_up_again_is_no_longer_slow() -> None:
    changes = named_in(slow_from(100, 0.3, noisy(0.03), 1, until=200))
    assert [slow is not None for _, slow in changes] == [True, False]
    assert 200 + OVER / 2 - 1 <= changes[1][0] <= 200 + 2 * OVER


def test_much_slower_host_is_reported_again() -> None:
    usual = noisy(0.02)
    changes = named_in(lambda rank, step: usual(rank, step) * ((1.2, 1.6)[step >= 100] if rank == 1 else 1.0))
    shares = [slow.share for _, slow in changes if slow is not None]
    assert shares == [pytest.approx(0.2, abs=0.04), pytest.approx(0.6, abs=0.04)]


@pytest.mark.parametrize("hosts", [2, 3, 32])
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 1.0])
def test_equally_varying_hosts_are_not_slow(hosts: int, sigma: float) -> None:
    assert named_in(noisy(sigma), hosts, steps=1500) == []


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_correlated_noise_is_not_a_slow_host(correlation: float) -> None:
    draw, state = random.Random(5), [0.0] * 16

    def own(rank: int, _: int) -> float:
        fresh = draw.gauss(0, math.sqrt(1 - correlation**2))
        state[rank] = correlation * state[rank] + fresh
        return math.exp(0.1 * state[rank])

    assert named_in(own, 16, steps=1500) == []


def test_increasing_noise_is_not_a_slow_host() -> None:
    draw = random.Random(7)
    assert named_in(lambda _, step: math.exp(draw.gauss(0, 0.01 if step < 300 else 0.15)), 64) == []


def test_occasionally_late_host_is_not_slow() -> None:
    """The first rank logs, evaluates or saves every few steps."""
    usual = noisy(0.01)
    assert named_in(lambda rank, step: 30.0 if rank == 0 and step % 4 == 0 else usual(rank, step)) == []


def test_slow_host_can_be_on_time_in_some_steps() -> None:
    usual = noisy(0.02)
    changes = named_in(
        lambda rank, step: usual(rank, step) * (1.6 if rank == 1 and step >= 100 and step % 10 else 1.0)
    )
    assert [slow and slow.host for _, slow in changes] == ["n1"]
    assert changes[0][0] <= 100 + WINDOWS[0]


def test_slowdown_without_cost_is_not_reported() -> None:
    assert named_in(slow_from(50, 0.5, noisy(0.02), 1), rest=100.0) == []


def test_minimum_cost_is_a_setting() -> None:
    slow = slow_from(50, 0.15, noisy(0.02), 1)  # 0.1 s of 1.1
    assert named_in(slow, least=(0.2, 0.0)) == named_in(slow, least=(0.0, 0.2)) == []
    assert [slow and slow.host for _, slow in named_in(slow, least=(0.05, 0.05))] == ["n1"]


def test_slowdown_ends_when_it_costs_little() -> None:
    usual = noisy(0.02)

    def own(rank: int, step: int) -> float:
        return usual(rank, step) * ((1.6 if step < 200 else 1.1) if rank == 1 and step >= 100 else 1.0)

    changes = named_in(own, least=(0.2, 0.05))
    assert [slow is not None for _, slow in changes] == [True, False]
    assert changes[1][0] >= 200


def test_independent_hosts_are_not_compared() -> None:
    assert named_in(slow_from(50, 0.5, noisy(0.02), 1), together=False) == []


def lengths(sigma: float, *, longer: float = 1.0, guilty: int = 1, begin: int = 0) -> Seconds:
    draw, known = random.Random(11), dict[tuple[int, int], float]()

    def tokens(rank: int, step: int) -> float:
        if (rank, step) not in known:
            usual = 4096 * math.exp(draw.gauss(0, sigma))
            known[rank, step] = usual * (longer if rank == guilty and step >= begin else 1.0)
        return known[rank, step]

    return tokens


@pytest.mark.parametrize("sigma", [0.0, 0.2])
def test_slow_host_is_found_with_varying_sequence_lengths(sigma: float) -> None:
    usual, tokens = noisy(0.02), lengths(sigma)
    own = slow_from(100, 0.15, lambda rank, step: usual(rank, step) * tokens(rank, step) / 4096, 1)
    changes = named_in(own, 32, steps=120, tokens=tokens)
    assert [(slow.host, slow.kind) for _, slow in changes if slow is not None] == [("n1", "slow")]


@pytest.mark.parametrize(("sigma", "power"), [(0.0, 1.0), (0.1, 1.0), (0.1, 2.0)])
def test_longer_sequences_are_an_imbalance(sigma: float, power: float) -> None:
    usual, tokens = noisy(0.02), lengths(sigma, longer=1.2, begin=100)
    changes = named_in(
        lambda rank, step: usual(rank, step) * (tokens(rank, step) / 4096) ** power, 32, tokens=tokens
    )
    assert [(slow.host, slow.kind) for _, slow in changes if slow is not None] == [("n1", "imbalance")]


def test_slow_host_with_little_work_is_not_reported() -> None:
    usual, tokens = noisy(0.02), lengths(0.1, longer=0.6)
    own = slow_from(100, 0.15, lambda rank, step: usual(rank, step) * tokens(rank, step) / 4096, 1)
    assert named_in(own, 16, steps=300, tokens=tokens) == []


def test_few_tokens_do_not_make_a_host_slow() -> None:
    assert named_in(noisy(0.02), 16, tokens=lengths(0.3, longer=0.7)) == []


STAGES = [
    RankGroup("a", "0-3", axis="dp"),
    RankGroup("b", "4-7", axis="dp"),
    RankGroup("p", "0,4", axis="pp"),
]


def test_pipeline_stages_are_not_compared() -> None:
    usual = noisy(0.02)

    def own(rank: int, step: int) -> float:
        return usual(rank, step) * (1.5 if rank >= 4 else 1.0) * (1.3 if rank == 6 and step >= 100 else 1.0)

    assert [slow and slow.host for _, slow in named_in(own, layout=STAGES)] == ["n6"]
    assert named_in(own, steps=90, layout=STAGES) == []
    whole_hosts = named_in(own, 2, 4, 90, layout=STAGES)
    assert whole_hosts == [], "no other host does the same work"


def test_leaving_host_is_removed() -> None:
    watched, usual = SlowHosts(), noisy(0.01)
    for step in range(60):
        for rank in range(4):
            watched.see(f"n{rank}", rank, step, RankStep(usual(rank, step) * (1.5 if rank == 1 else 1), 2.0))
    assert watched.slow is not None and watched.slow.host == "n1"
    assert watched.leave("n1")
    assert watched.slow is None
    for step in range(30, 160):  # from its last checkpoint
        for rank in (0, 2, 3):
            slow = rank == 3 and step >= 100
            watched.see(f"n{rank}", rank, step, RankStep(usual(rank, step) * (1.5 if slow else 1), 2.0))
    assert watched.slow is not None and watched.slow.host == "n3"


def test_incomplete_steps_are_dropped() -> None:
    watched = SlowHosts()
    watched.see("n1", 1, 0, RankStep(0.5, 1.0))
    for step in range(2000):
        for rank in (0, 2):
            watched.see(f"n{rank}", rank, step, RankStep(0.5, 1.0))
    assert watched.steps > 1000
    assert len(watched._open) < 10


@pytest.mark.parametrize(
    "own", [RankStep(0.0, 1.0), RankStep(-1.0, 1.0), RankStep(math.nan, 1.0), RankStep(1.0, math.inf)]
)
def test_invalid_times_are_ignored(own: RankStep) -> None:
    watched = SlowHosts()
    for rank in range(3):
        assert not watched.see(f"n{rank}", rank, 1, own)
    assert watched.steps == 0


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_deviation_is_relative_to_the_median_of_others(values: list[float]) -> None:
    found = deviations(dict(enumerate(values)))
    for at, value in enumerate(values):
        others = values[:at] + values[at + 1 :]
        assert found[at] == pytest.approx(value - median(others))


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(6)), st.floats(0.001, 1000), st.integers(0, 5), st.integers(0, 2**20))
def test_order_of_hosts_and_unit_of_time_are_irrelevant(
    order: list[int], unit: float, guilty: int, seed: int
) -> None:
    def verdicts(ranks: list[int], unit: float) -> list[tuple[int, str]]:
        watched, found = SlowHosts(), list[tuple[int, str]]()
        draw = random.Random(seed)
        for rank in ranks:
            watched.join(f"n{rank}", rank, 0)
        for step in range(90):
            own = [
                math.exp(draw.gauss(0, 0.03)) * (1.25 if index == guilty and step > 40 else 1)
                for index in range(6)
            ]
            for rank in ranks:
                if watched.see(f"n{rank}", rank, step, RankStep(own[rank] * unit, (max(own) + 0.3) * unit)):
                    assert watched.slow is not None
                    found.append((step, watched.slow.host))
        return found

    assert verdicts(order, unit) == verdicts(list(range(6)), 1.0) != []
