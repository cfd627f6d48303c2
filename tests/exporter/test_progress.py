"""Steps and phases from ranks, combined with those from the log."""

from __future__ import annotations

import pytest

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.progress import Advance, HookedProgress
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_rules.records import Line, Sample


class Ranks:
    """Signals of ranks and logs, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.progress = HookedProgress()
        self.watch = StallWatch(ExporterSettings(), self.now)
        self.metrics = RunMetrics("r")
        self.advance = Advance(self.progress, self.watch, self.metrics)
        self.beats = 0.0

    def tell(self, phase: str, step: int | None = None, rank: int = 0, after: float = 0.0) -> None:
        self.now += after
        self.beats += 1
        values = {"phase": float(PHASES.index(phase)), "beats": self.beats}
        if step is not None:
            values["step"] = float(step)
        self.progress.hooked(Record(rank, 0, self.now, values))
        self.advance.seen(self.now)

    def steps(self, first: int, last: int, seconds: float = 1.0, ranks: int = 1) -> None:
        for step in range(first, last + 1):
            self.now += seconds
            for rank in range(ranks):
                self.tell("train", step, rank, after=0.001)

    def log(self, text: str = "", step: int | None = None) -> None:
        self.progress.reported_at = self.now
        sample = None if step is None else Sample(None, self.now, step=step, series="dict")
        self.progress.add(sample, Line(text, "train.log", 1, None, self.now))
        self.advance.seen(self.now)

    def stalled(self, after: float) -> bool:
        return self.watch.check(self.now + after).stalled


@pytest.fixture
def run() -> Ranks:
    run = Ranks()
    run.tell("init")
    return run


def test_evaluation_of_one_rank_is_that_of_the_run(run: Ranks) -> None:
    run.steps(1, 50, ranks=2)
    run.tell("eval", rank=0)
    run.tell("train", 50, rank=1, after=0.1)  # the same step, a little later
    assert run.progress.phase == "eval"
    assert not run.stalled(after=3000.0)
    run.tell("train", rank=0, after=3000.0)
    assert run.progress.phase == "train"


def test_same_step_of_several_ranks_counts_once(run: Ranks) -> None:
    """Otherwise seven of eight waits would be some milliseconds, and the eighth an outlier."""
    run.steps(1, 400, seconds=20.0, ranks=8)
    assert run.watch.thresholds["train"] == pytest.approx(60.0, abs=1.0)


def test_line_about_a_known_step_is_not_a_sign_of_life(run: Ranks) -> None:
    run.steps(1, 400, seconds=20.0)
    last = run.watch.last_sign
    run.now += 5.0
    run.log(step=400)
    assert run.watch.last_sign == last


def test_continuing_log_without_probes_is_not_a_stall(run: Ranks) -> None:
    run.steps(1, 400)
    for step in range(401, 500):
        run.now += 20.0
        run.log(step=step)
    assert not run.stalled(after=25.0)


def test_batches_of_an_evaluation_are_signs_of_life(run: Ranks) -> None:
    run.steps(1, 50)
    for _ in range(100):
        run.tell("eval", after=60.0)
        assert not run.stalled(after=59.0)
    assert run.stalled(after=3601.0)


def test_compilation_during_a_run_is_not_a_stall(run: Ranks) -> None:
    run.steps(1, 400)
    run.tell("init", after=0.1)
    assert not run.stalled(after=1200.0)
    run.tell("train", after=1200.0)
    assert run.stalled(after=31.0)


def test_restarted_ranks_are_loading(run: Ranks) -> None:
    run.steps(1, 400)
    run.progress.ended(run.now + 1.0)
    run.advance.seen(run.now + 1.0)
    assert run.progress.phase == "init"
    assert not run.stalled(after=900.0)
    run.tell("init", after=30.0)
    run.steps(380, 390)  # from the last checkpoint
    assert (run.progress.attempt, run.progress.last_step) == (2, 390)
    assert run.stalled(after=31.0)


def test_restarted_ranks_of_a_plain_loop_are_loading(run: Ranks) -> None:
    """Only the log contains the steps; the ranks report only that they run."""
    for step in range(1, 151):
        run.now += 0.5
        run.log(step=step)
    run.progress.ended(run.now + 1.0)
    run.advance.seen(run.now + 1.0)
    run.tell("init", after=5.0)
    assert run.progress.phase == "init"
    assert not run.stalled(after=300.0)
    for step in range(121, 180):  # from the last checkpoint
        run.now += 0.5
        run.log(step=step)
    assert run.progress.phase == "train"
    assert run.stalled(after=100.0)


def test_rank_without_steps_does_not_determine_the_phase(run: Ranks) -> None:
    run.tell("init", rank=9)
    run.steps(1, 5)
    assert run.progress.phase == "train"


def test_evaluations_known_only_from_the_log_count(run: Ranks) -> None:
    run.steps(1, 50)
    run.now += 1.0
    run.log("***** Running Evaluation *****")
    assert run.progress.phase == "eval"
    run.steps(51, 51)
    assert run.progress.phase == "train"


@pytest.mark.parametrize("printed", [1001, 1])
def test_steps_of_log_and_ranks_count_once(run: Ranks, printed: int) -> None:
    """Records are read once a second, so the first steps' lines come before. Logs may count otherwise."""
    for step in range(3):
        run.now += 0.2
        run.log(step=printed + step)
    before = run.metrics.registry.get_sample_value("stallwatch_steps_total", {"run": "r"})
    durations = run.metrics.registry.get_sample_value("stallwatch_step_duration_seconds_count", {"run": "r"})
    assert (before, durations) == (printed + 2, 2)
    end, run.now = run.now, run.now - 0.61
    run.steps(1, 3, seconds=0.199)
    assert run.now <= end
    run.steps(4, 10, seconds=0.2)
    after = run.metrics.registry.get_sample_value("stallwatch_steps_total", {"run": "r"})
    assert after == before + 7
    durations = run.metrics.registry.get_sample_value("stallwatch_step_duration_seconds_count", {"run": "r"})
    assert durations == 9
    assert run.metrics.registry.get_sample_value("stallwatch_step", {"run": "r"}) == 10


@pytest.mark.parametrize(
    ("lines", "phase", "only_total"),
    [
        ([*range(1, 5)], "idle", True),
        ([*range(1, 5), "Training completed"], "idle", False),
        ([*range(1, 5), *range(1, 5)], "train", False),  # the steps of an epoch
        ([*range(1, 5), "Training completed", *range(1, 5), "Training completed"], "train", False),
        ([1, 2], "train", False),
    ],
)
@pytest.mark.parametrize("probed", [True, False])
def test_end_is_sure_unless_the_log_shows_only_a_total(
    lines: list[int | str], phase: str, only_total: bool, probed: bool
) -> None:
    ranks = Ranks()
    for number, line in enumerate(lines, 1):
        step = line if isinstance(line, int) else None
        if probed and step is not None:
            ranks.tell("train", number, after=1.0)
        sample = step and Sample(None, ranks.now, step, 4, {"loss": 0.5}, series="text")
        ranks.progress.reported_at = ranks.now
        ranks.progress.add(sample or None, Line(str(line), "train.log", number, None, ranks.now))
        ranks.advance.seen(ranks.now)
    assert (ranks.watch.check(ranks.now).phase, ranks.watch.only_reached_total) == (phase, only_total)
