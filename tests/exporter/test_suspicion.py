"""Stack samples of a quiet run: their times, and what a stall watch makes of given results."""

from __future__ import annotations

import pytest

from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.evidence import LookResult
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_exporter.watching.suspicion import Suspicion
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.quiet_periods import FOREVER, Ruling
from stallwatch_rules.stacks.records import Frame, RankAnswer, Recorded, ThreadStack

SETTINGS = ExporterSettings()


class Looks:
    """Replacement of ``Evidence``: each sample is complete at the next tick."""

    def __init__(self) -> None:
        self.possible, self.under_way = True, False
        self.function = "score"
        self.recorded = Recorded()
        self.counters: dict[str, float] = {}
        self.works = False  # true if the rank uses a processor all the time
        self.processor = 0.0
        self.at: list[float] = []
        self.now = 0.0
        self.dropped: list[bool] = []

    def look(self, *, progressed: bool) -> None:
        assert progressed
        self.under_way = True
        self.at.append(self.now)

    def take(self) -> LookResult | None:
        if not self.under_way:
            return None
        self.under_way = False
        frames = (Frame("/w/train.py", 40, "main"), Frame("/w/train.py", 7, self.function))
        if self.function == "all_reduce":
            frames = (*frames[:1], Frame("/x/torch/distributed/distributed_c10d.py", 2800, "all_reduce"))
        threads = (ThreadStack(frames, main=True),)
        self.processor += 1000.0 if self.works else 0.0
        about = {"counters": self.counters, "recorded": self.recorded, "processor": self.processor}
        rank = RankAnswer(0, 1, "probe", threads=threads, **about)  # type: ignore[arg-type]
        return LookResult([rank], fold([rank], time=0.0, seconds=0.1))

    def drop(self, *, reported: bool) -> None:
        self.under_way = False
        self.dropped.append(reported)


class Run:
    """A run with steps of a quarter of a second, and a clock that the test moves."""

    def __init__(self, steps: int = 50) -> None:
        self.looks = Looks()
        self.watch = StallWatch(SETTINGS, started=0.0)
        self.suspicion = Suspicion(SETTINGS, self.watch, self.looks)  # type: ignore[arg-type]
        self.step = 0
        self.now = 100.0
        for _ in range(steps):
            self.steps()

    def steps(self, seconds: float = 0.25) -> None:
        self.now += seconds
        self.step += 1
        self.watch.observe(self.now, "train", self.step)

    def quiet(self, seconds: float) -> float | None:
        """Let the run be quiet for `seconds`; return the seconds until the stall, or ``None``."""
        begun = None
        for second in range(round(seconds)):
            self.now += 1.0
            self.looks.now = self.now
            self.suspicion.look(self.now, progressed=True, repeating=lambda: False)
            stalled = self.watch.check(self.now, begin=not self.suspicion.pending(self.now)).stalled
            if stalled and begun is None:
                begun = second + 1.0
        return begun


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.mark.parametrize("seconds", [15.0, 120.0])
def test_long_steps_are_learned(seconds: float) -> None:
    run = Run(steps=0)
    for _ in range(10):
        assert run.quiet(seconds - 1) is None
        run.steps(1.0)
    assert run.watch.rhythm_known
    assert run.quiet(700) == pytest.approx(max(30.0, 3 * seconds), abs=2)


def test_stacks_are_sampled_before_the_threshold(run: Run) -> None:
    start = run.now
    assert run.quiet(40) == 31.0
    assert [round(at - start) for at in run.looks.at[:3]] == [10, 20, 28]
    assert run.suspicion.ruling is not None and run.suspicion.ruling.place == "train.py:7 in score"


def test_evaluation_is_waited_for_and_its_call_site_remembered(run: Run) -> None:
    run.looks.function = "evaluate"
    assert run.quiet(170) is None
    run.steps(0.1)
    assert run.watch.thresholds["train"] == 30.0, "the steps did not become slower by it"
    run.quiet(1)
    run.steps(0.1)
    assert run.quiet(540) == 511.0, "three times as long as it took before"


def test_endless_first_evaluation_is_a_stall_after_three_minutes(run: Run) -> None:
    run.looks.function = "evaluate"
    assert run.quiet(200) == 181.0


def test_counters_of_a_rank_restart_the_quiet_time(run: Run) -> None:
    for batch in range(20):
        run.looks.counters = {"batches": float(batch)}
        assert run.quiet(9) is None


def test_stacks_are_sampled_anew_after_a_stall(run: Run) -> None:
    assert run.quiet(31) == 31.0
    run.steps()
    assert run.quiet(5) is None
    assert run.suspicion.ruling is None and run.looks.dropped[-1] is True
    run.steps()
    assert run.quiet(12) is None and run.looks.dropped[-1] is False


def test_call_site_is_remembered_by_its_whole_wait(run: Run) -> None:
    run.looks.function = "evaluate"
    assert run.quiet(100) is None
    for _ in range(4):  # before the next check of the clock
        run.steps(0.1)
    run.quiet(1)
    run.steps(0.1)
    assert run.quiet(310) == 301.0


def test_wait_with_progress_is_not_remembered(run: Run) -> None:
    run.looks.function = "evaluate"
    run.looks.counters = {"batches": 1.0}
    assert run.quiet(25) is None
    run.looks.counters = {"batches": 2.0}
    assert run.quiet(10) is None
    assert run.quiet(200) is not None and run.suspicion.ruling is not None
    assert run.suspicion.ruling.limit == 180.0


@pytest.mark.parametrize(
    ("only_total", "work", "limit"),
    [(True, 0, 181.0), (True, 400, 180.0), (False, 0, None), (False, 400, None)],
)
def test_rest_after_the_last_step_counts_from_the_last_work(
    run: Run, only_total: bool, work: int, limit: float | None
) -> None:
    run.watch.observe(run.now, "idle")
    run.watch.only_reached_total = only_total
    run.looks.works = True
    assert run.quiet(work) is None
    run.looks.works = False
    assert run.quiet(300) == limit


def test_stacks_of_a_stall_survive_a_suspension(run: Run) -> None:
    assert run.quiet(31) == 31.0
    run.watch.pause(600.0)
    run.now += 600.0
    run.quiet(2)
    assert run.looks.dropped == [False] and run.suspicion.ruling is not None
    run.steps()
    run.steps()
    run.quiet(1)
    assert run.looks.dropped[-1] is True


def test_quick_evaluations_shorten_later_waits(run: Run) -> None:
    for _ in range(4):
        run.watch.observe(run.now + 1.0, "eval")
        run.watch.observe(run.now + 2.0, "train")
        run.now += 2.0
        run.steps(1.5)
        run.steps()
    run.watch.observe(run.now + 1.0, "eval")
    run.watch.observe(run.now + 2.0, "train")
    run.now += 2.0
    run.looks.function = "compute_metrics"
    assert run.quiet(60) == 31.0


def test_later_activity_does_not_replace_the_reported_stacks(run: Run) -> None:
    assert run.quiet(40) is not None
    run.looks.function = "shut_down"
    run.quiet(40)
    assert run.suspicion.stacks is not None
    assert run.suspicion.stacks.groups[0].place == "train.py:7 in score"


def test_ruling_of_the_run_is_not_reported_as_that_of_the_host(run: Run) -> None:
    """Otherwise a pause in a debugger on another host would be reported back from this host without end."""
    pause = Ruling("paused", FOREVER, "debugger", 1, "train.py:3 in f")
    run.suspicion.run_ruling = lambda: pause
    run.looks.function, run.looks.recorded = "all_reduce", Recorded(world_size=2)
    assert run.quiet(40) is None
    assert run.suspicion.ruling == pause
    assert run.suspicion.own_ruling is not None
    assert (run.suspicion.own_ruling.reason, run.suspicion.own_ruling.limit) == ("others", 180.0)
    run.steps()
    run.quiet(1)
    assert run.suspicion.own_ruling is None
