"""Watches that detect stalls: the agent's watch, with and without stack samples, and fixed timeouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from simulated import Doing, Report, Run

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.stacks.evidence import LookResult
from stallwatch_exporter.watching.progress import Advance, HookedProgress
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_exporter.watching.suspicion import Suspicion
from stallwatch_rules.records import Line, Sample
from stallwatch_rules.stacks.records import Frame, RankAnswer, ThreadStack

FIXED = (300, 600, 1800)  #: fixed timeouts that other tools use, in seconds without progress
STARTED = 1_790_000_000.0
TICK = 1.0  #: seconds between two checks of the agent
LOOK_TICK = 5.0  #: seconds between two checks while slow stack samples are simulated
_RANKS_APART = 0.02  # seconds between the signals of two ranks
_FLOWING = 1 << 30  # bytes that a save or a load moves between two samples
_OWN, _LIBRARY = "/w/train.py", "/usr/lib/python3/dist-packages/"
_MAIN = Frame(_OWN, 9, "main")
_WAITS = (_MAIN, Frame(_LIBRARY + "torch/distributed/distributed_c10d.py", 1, "all_reduce"))
#: For each activity, the function of the program, and the file and the name of the library function that it
#: calls.
_CALLS: dict[Doing | Literal["hang"], tuple[str, str, str]] = {
    "step": ("train_step", "torch/autograd/graph.py", "_engine_run_backward"),
    "load": ("load_model", "transformers/modeling_utils.py", "from_pretrained"),
    "compile": ("train_step", "torch/_inductor/compile_fx.py", "compile_fx"),
    "evaluate": ("evaluate", "torch/nn/modules/module.py", "_call_impl"),
    "metrics": ("compute_metrics", "sklearn/metrics/_ranking.py", "roc_auc_score"),
    "save": ("save_checkpoint", "torch/serialization.py", "save"),
    "rollout": ("sample", "vllm/entrypoints/llm.py", "generate"),
    "sync": ("push_weights", "requests/sessions.py", "send"),
    "hang": ("stuck", "numpy/linalg/linalg.py", "solve"),
}


@dataclass
class Verdict:
    """The verdict on one run."""

    kind: str
    hours: float
    false_learnt: int = 0
    found_after: float = 0.0  #: seconds from the last activity before the hang until the stall was found
    hangs_in: Doing = "step"
    looked: Verdict | None = None  #: verdict on the same run with stack samples, if the run allows them
    false_fixed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(FIXED, 0))
    wrongly: list[str] = field(default_factory=list)  #: descriptions of the false stalls


class SimulatedLooks:
    """A replacement for `Evidence` that returns the stacks of a simulated run immediately.

    Rank 0 is in the call, and the other ranks wait for it. Only a save and a load move bytes.
    """

    possible = True

    def __init__(self) -> None:
        self.doing: Doing | Literal["hang"] = "step"
        self.inside: Doing = "step"  #: activity of the run when it began to stall
        self.ranks = 1
        self.under_way = False
        self._moved = 0

    def look(self, **_: bool) -> None:
        self.under_way = True

    def take(self) -> LookResult | None:
        if not self.under_way:
            return None
        self.under_way = False
        self._moved += _FLOWING if self.doing in ("save", "load") else 0
        frames = [_MAIN]
        for doing in dict.fromkeys((self.inside, self.doing)) if self.doing == "hang" else (self.doing,):
            function, library, called = _CALLS[doing]
            frames += [Frame(_OWN, 20, function), Frame(_LIBRARY + library, 1, called)]
        stacks = [tuple(frames), *[_WAITS] * (self.ranks - 1)]
        return LookResult(
            [
                RankAnswer(
                    number,
                    100 + number,
                    "probe",
                    threads=(ThreadStack(stack, main=True),),
                    transferred=self._moved,
                )
                for number, stack in enumerate(stacks)
            ]
        )

    def drop(self, **_: bool) -> None:
        self.under_way = False


class Watched:
    """The parts of the agent that detect stalls. They receive the same inputs as in the agent."""

    def __init__(self, started: float = STARTED, looks: SimulatedLooks | None = None) -> None:
        settings = ExporterSettings()
        self.progress = HookedProgress()
        self.watch = StallWatch(settings, started)
        self.advance = Advance(self.progress, self.watch, RunMetrics("simulated"))
        self.signs = 0.0  #: time of the last progress, for the fixed timeouts
        self._beats = 0
        self._looks = looks
        self._suspicion = Suspicion(settings, self.watch, looks) if looks is not None else None  # type: ignore[arg-type]

    def waits(self, now: float, until: float, doing: Doing | Literal["hang"]) -> float | None:
        """Simulate a wait that begins at `now`.

        Return the time when a stall is reported, or ``None`` if no stall is reported before `until`.
        """
        if self._suspicion is None or self._looks is None:
            return until if self.stalled(until) else None
        self._looks.doing = doing
        while (now := now + self._tick(now, exact=doing == "hang")) < until:
            if now - self.watch.last_sign >= LOOK_TICK:
                self._suspicion.look(now, progressed=self.progress.progressed, repeating=lambda: False)
                if self.watch.check(now).stalled:
                    return now
        return None

    def _tick(self, now: float, *, exact: bool) -> float:
        """Return the seconds until the next check. During a long wait, checks are as rare as in the agent."""
        return LOOK_TICK if exact else max(LOOK_TICK, (now - self.watch.last_sign) / 20)

    def stalled(self, now: float) -> bool:
        """Return True if the run counts as stalled at `now`."""
        quiet = now - self.watch.last_sign
        # Most waits need no arithmetic, because a wait that is below the floor or shorter than an earlier
        # wait is not a stall.
        return quiet > 30.0 and quiet > self.watch.longest and self.watch.check(now).stalled

    def take(self, now: float, report: Report, ranks: int) -> None:
        """Pass a signal of the run to the parts of the agent at the time `now`."""
        if report.what == "gone":
            self.progress.ended(now)
            self.advance.seen(now)
            return
        if report.what in ("step", "phase"):
            for rank in range(ranks):
                at = now + rank * _RANKS_APART
                self.progress.hooked(self._record(report, rank, at))
                self.advance.seen(at)
            return
        self.progress.received_at = now
        line = Line(str(report.value), "train.log", 1, None, now)
        if report.what == "log-step":
            self.progress.add(Sample(None, now, step=int(report.value), series="dict"), line)
        else:
            self.progress.add(None, line)
        self.advance.seen(now)

    def _record(self, report: Report, rank: int, at: float) -> Record:
        if report.what == "step":
            values = {"step": float(report.value), "phase": float(PHASES.index("train"))}
        else:
            self._beats += 1
            values = {"phase": float(PHASES.index(str(report.value))), "beats": float(self._beats)}
        return Record(rank, 0, at, values)


def watch_run(run: Run, *, looks: bool = False) -> Verdict:
    """Watch a run until its duration has passed. Then make the run stall in its current activity."""
    seen = SimulatedLooks() if looks else None
    watched, verdict = Watched(looks=seen), Verdict(run.kind, run.hours)
    if seen is not None:
        seen.ranks = run.ranks
    now = sign = STARTED
    for report in run.reports:
        began, now = now, now + report.wait
        verdict.hangs_in = report.doing
        if now > STARTED + run.hours * 3600:
            break
        if watched.waits(began, now, report.doing) is not None:
            verdict.false_learnt += 1
            state = watched.watch.check(now)
            verdict.wrongly.append(
                f"{report.doing} in {state.phase} {state.seconds:.0f} s > {state.threshold:.0f} s"
            )
        if report.what != "log-line":  # a fixed timeout on steps does not see log lines
            for seconds in FIXED:
                verdict.false_fixed[seconds] += now - sign > seconds
        if report.what in ("step", "log-step"):
            sign = now
        watched.take(now, report, run.ranks)
    last = watched.watch.last_sign
    if seen is not None:
        seen.inside = verdict.hangs_in
        verdict.found_after = (watched.waits(last, math.inf, "hang") or math.inf) - last
    else:
        verdict.found_after = found_after(watched, last)
    return verdict


def found_after(watched: Watched, last: float) -> float:
    """Return the number of seconds from `last` until a check finds the stall. A check runs every second."""
    seconds = TICK
    while not watched.watch.check(last + seconds).stalled:
        seconds += TICK
    return seconds


def watch_recording(path: Path) -> Verdict | None:
    """Watch a log, using the times of its lines. Return ``None`` if the log has no times or no steps."""
    from recorded import timed_runs

    verdict = Verdict(path.name, 0.0)
    progressed = [_follow(lines, verdict) for lines in timed_runs(path)]
    return verdict if any(progressed) else None


def _follow(lines: list[tuple[float, Sample | None, Line]], verdict: Verdict) -> bool:
    """Add the stalls of one run to the verdict. Return True if the run contains a step."""
    first = sign = lines[0][0]
    watched, episode = Watched(first), 0
    for now, sample, line in lines:
        if watched.stalled(now):
            state = watched.watch.check(now)
            if state.episode > episode:  # several lines can occur during one stall
                episode = state.episode
                verdict.false_learnt += 1
                verdict.wrongly.append(
                    f"{verdict.kind}: {state.phase}, {state.seconds:,.0f} s > {state.threshold:,.0f} s"
                )
        if sample is not None and sample.step is not None:
            for seconds in FIXED:
                verdict.false_fixed[seconds] += now - sign > seconds
            sign = now
        watched.progress.received_at = now
        watched.progress.add(sample, line)
        watched.advance.seen(now)
    verdict.hours += (lines[-1][0] - first) / 3600
    return watched.progress.progressed
