"""The watch of the agent, and fixed timeouts beside it, on what a run tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulated import LONGEST_STEP, Run, Told

from stallwatch_exporter.probe.layout import PHASES
from stallwatch_exporter.rings.reader import Record
from stallwatch_exporter.serving.metrics import RunMetrics
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_exporter.watching.advance import Advance
from stallwatch_exporter.watching.hookedprogress import HookedProgress
from stallwatch_exporter.watching.stall import StallWatch
from stallwatch_rules.records import Line, Sample

FIXED = (300, 600, 1800)  #: seconds without progress that others call a hang
STARTED = 1_790_000_000.0
TICK = 1.0  #: the agent looks about once a second
_RANKS_APART = 0.02  # seconds


@dataclass
class Verdict:
    """What was said of one run."""

    kind: str
    hours: float
    false_learnt: int = 0
    found_after: float = 0.0  #: seconds from the hang's last sign of life
    false_fixed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(FIXED, 0))
    wrongly: list[str] = field(default_factory=list)  #: what was called a stall


class Watched:
    """The parts of the agent that decide, fed as the agent feeds them."""

    def __init__(self, started: float = STARTED) -> None:
        settings = ExporterSettings()
        self.progress = HookedProgress()
        self.watch = StallWatch(settings, started)
        self.advance = Advance(self.progress, self.watch, RunMetrics("simulated"))
        self.signs = 0.0  #: when any sign of progress came last, for the fixed timeouts
        self._beats = 0

    def stalled(self, now: float) -> bool:
        """Whether the run counts as stalled at `now`."""
        quiet = now - self.watch.last_sign
        # Most waits need no arithmetic: below the floor, or shorter than one before, nothing is a stall.
        return quiet > 30.0 and quiet > self.watch.longest and self.watch.check(now).stalled

    def tell(self, now: float, told: Told, ranks: int) -> None:
        """Take in what the run told at `now`."""
        if told.what == "gone":
            self.progress.ended(now)
            self.advance.seen(now)
            return
        if told.what in ("step", "phase"):
            for rank in range(ranks):
                at = now + rank * _RANKS_APART
                self.progress.hooked(self._record(told, rank, at))
                self.advance.seen(at)
            return
        self.progress.heard_at = now
        line = Line(str(told.value), "train.log", 1, None, now)
        if told.what == "log-step":
            self.progress.add(Sample(None, now, step=int(told.value), series="dict"), line)
        else:
            self.progress.add(None, line)
        self.advance.seen(now)

    def _record(self, told: Told, rank: int, at: float) -> Record:
        if told.what == "step":
            values = {"step": float(told.value), "phase": float(PHASES.index("train"))}
        else:
            self._beats += 1
            values = {"phase": float(PHASES.index(str(told.value))), "beats": float(self._beats)}
        return Record(rank, 0, at, values)


def watch_run(run: Run) -> Verdict:
    """Follow the run until its time is over, then let it hang where it is."""
    watched, verdict = Watched(), Verdict(run.kind, run.hours)
    now = sign = STARTED
    for told in run.told:
        now += told.wait
        if now > STARTED + run.hours * 3600:
            break
        if watched.stalled(now):
            verdict.false_learnt += 1
            state = watched.watch.check(now)
            verdict.wrongly.append(f"{state.phase} {state.seconds:.0f} s > {state.threshold:.0f} s")
        if told.what != "log-line":  # whoever waits for steps alone knows of nothing else
            for seconds in FIXED:
                verdict.false_fixed[seconds] += now - sign > seconds
        if told.what in ("step", "log-step"):
            sign = now
        watched.tell(now, told, run.ranks)
    last = watched.watch.last_sign
    verdict.found_after = found_after(watched, last)
    return verdict


def found_after(watched: Watched, last: float) -> float:
    """When the agent's look of each second finds that nothing has come since `last`."""
    seconds = TICK
    while not watched.watch.check(last + seconds).stalled:
        seconds += TICK
    return seconds


def watch_recording(path: Path) -> Verdict | None:
    """Follow a log by its lines' own times; ``None`` where they have none, or no step is in it."""
    from recorded import timed_runs

    verdict = Verdict(path.name, 0.0)
    progressed = [_follow(lines, verdict) for lines in timed_runs(path)]
    return verdict if any(progressed) else None


def _follow(lines: list[tuple[float, Sample | None, Line]], verdict: Verdict) -> bool:
    """Add what is said of one run; whether a step is in it."""
    first = sign = lines[0][0]
    watched, episode = Watched(first), 0
    for now, sample, line in lines:
        if watched.stalled(now):
            state = watched.watch.check(now)
            if state.episode > episode:  # many lines may come in one stall
                episode = state.episode
                verdict.false_learnt += 1
                verdict.wrongly.append(
                    f"{verdict.kind}: {state.phase}, {state.seconds:,.0f} s > {state.threshold:,.0f} s"
                )
        if sample is not None and sample.step is not None:
            for seconds in FIXED:
                verdict.false_fixed[seconds] += now - sign > seconds
            sign = now
        watched.progress.heard_at = now
        watched.progress.add(sample, line)
        watched.advance.seen(now)
    verdict.hours += (lines[-1][0] - first) / 3600
    return watched.progress.progressed


__all__ = ["FIXED", "LONGEST_STEP", "Iterator", "Verdict", "watch_recording", "watch_run"]
