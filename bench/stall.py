"""Compare the stall watch's false stalls and delays with those of fixed timeouts.

    make bench-stall

The agent's own watch (``HookedProgress``, ``Advance``, ``StallWatch``) observes 10,000 hours of simulated
runs, with a clock that jumps. The signals of the runs come from a probe or from the reader of log lines. Then
the watch reads the healthy recordings of the test corpus line by line, provided that their lines have times.
``simulated.py`` generates the runs, and the watch does not use any of its parameters.

A simulated run takes up to 40 minutes to start, and its first step includes a compilation. The durations of
its steps are even, log-normal (sigma 0.2 to 1.0), Pareto (index 1.5 to 5), Weibull, or drifting. A step takes
at most ten minutes. After 20 to 500 steps, with a probability of 0.7, the run evaluates 5 to 60 batches and
then computes metrics for up to three minutes. With the same probability, it writes a checkpoint for 2 to 600
seconds. Other runs have rollouts, restarts, compilations of up to ten minutes, or only logs. Runs with a
probe are watched twice: with their thresholds alone, as on hosts where stacks cannot be sampled, and with
stack samples. A simulated sample shows the call of rank 0 and shows the other ranks in a collective. It shows
transferred bytes during a save or a load, and no other counters. A hang is a call of the program's own code
in the current phase of the run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from recorded import healthy_recordings
from rich.console import Console
from rich.progress import track
from simulated import KINDS, UNFORESEEN, Run, simulate
from watchers import FIXED, Verdict, watch_recording, watch_run

HOURS = 10_000
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=HOURS, help="simulated run-hours")
    parser.add_argument("--seed", type=int, default=1, help="seed of the simulated runs")
    parser.add_argument(
        "--kind",
        choices=sorted({**KINDS, **UNFORESEEN}),
        action="append",
        help="simulate only this kind of run (you can repeat this option)",
    )
    given = parser.parse_args()
    began = time.monotonic()
    verdicts = watched(given.hours, given.seed, given.kind or sorted(KINDS))
    print(f"{sum(v.hours for v in verdicts):,.0f} run-hours, {len(verdicts)} runs, seed {given.seed}\n")
    print(false_stalls(verdicts))
    print()
    print(hangs(verdicts))
    print()
    print(summary(verdicts))
    if not given.kind:
        print("\nnot included above: pauses that differ from all earlier parts of the run")
        print(false_stalls(watched(given.hours / 10, given.seed, sorted(UNFORESEEN))))
    print()
    print(recordings(healthy_recordings(ROOT)))
    print(f"\n{time.monotonic() - began:.0f} s")


def watched(hours: float, seed: int, kinds: list[str]) -> list[Verdict]:
    """Watch runs of each kind until the given hours are reached. Every run ends in a hang.

    Return a verdict for each run.
    """
    found: list[Verdict] = []
    for kind in track(kinds, "simulating", console=Console(stderr=True), transient=True):
        draw = random.Random(f"{seed} {kind}")
        done = 0.0
        while done < hours / len(kinds):
            before = draw.getstate()
            run: Run = simulate(kind, draw)
            verdict = watch_run(run)
            if run.hooked:
                draw.setstate(before)
                verdict.looked = watch_run(simulate(kind, draw), looks=True)
            found.append(verdict)
            done += run.hours
    return found


def final(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the final verdict on each run, which considers the stack samples of the run if there are any."""
    return [verdict.looked or verdict for verdict in verdicts]


def by_kind(verdicts: list[Verdict]) -> list[tuple[str, list[Verdict]]]:
    """Return the verdicts on each kind of run, and then on all runs, as pairs of kind and verdicts."""
    found: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        found[verdict.kind].append(verdict)
    return [*sorted(found.items()), ("all", verdicts)]


def false_stalls(verdicts: list[Verdict]) -> str:
    """Return, in a line for each kind of run, the number of stalls that were reported for healthy runs."""
    lines = [
        f"{'false stalls':34}{'hours':>8}{'stacks':>8}{'without':>8}"
        + "".join(f"{f'{s // 60} min':>9}" for s in FIXED)
    ]
    for kind, part in by_kind(verdicts):
        looked = sum(v.false_learnt for v in final(part))
        row = f"{kind:34}{sum(v.hours for v in part):8,.0f}{looked:8,}{sum(v.false_learnt for v in part):8,}"
        lines.append(row + "".join(f"{sum(v.false_fixed[s] for v in part):9,}" for s in FIXED))
    return "\n".join(lines)


def hangs(verdicts: list[Verdict]) -> str:
    """Return, in a line for each kind of run, the seconds from the last activity to the report of a hang."""
    lines = [
        f"{'seconds until a hang is reported':34}{'hangs':>8}{'median':>8}{'90%':>8}{'longest':>9}"
        f"{'without stacks: median':>23}{'longest':>9}"
    ]
    for kind, part in by_kind(verdicts):
        looked, alone = sorted(v.found_after for v in final(part)), [v.found_after for v in part]
        late = looked[int(0.9 * (len(looked) - 1))]
        row = f"{kind:34}{len(part):8,}{statistics.median(looked):8,.0f}{late:8,.0f}{looked[-1]:9,.0f}"
        lines.append(f"{row}{statistics.median(alone):23,.0f}{max(alone):9,.0f}")
    lines.append(f"{'fixed timeouts':34}{'':8}" + "".join(f"{seconds:8,}" for seconds in FIXED))
    return "\n".join(lines)


def summary(verdicts: list[Verdict]) -> str:
    """Return the number of false stalls per 1,000 hours and the delay until hangs were found."""
    hours, final_verdicts = sum(verdict.hours for verdict in verdicts), final(verdicts)
    rate = 1000 * sum(verdict.false_learnt for verdict in final_verdicts) / hours
    median = statistics.median(verdict.found_after for verdict in final_verdicts)
    wrongly = Counter(
        wrong.partition(" s >")[0].rpartition(" ")[0] for v in final_verdicts for wrong in v.wrongly
    )
    of = "".join(f"\n  {count} × {what}" for what, count in wrongly.most_common())
    return (
        f"{rate:.2f} false stalls per 1,000 run-hours; a hang is reported after {median:,.0f} s (median){of}"
    )


def recordings(paths: Iterable[Path]) -> str:
    """Return the number and the total length of the healthy recordings, and the number of reported stalls."""
    found = [watch_recording(path) for path in paths]
    timed = [each for each in found if each is not None]
    stalls = sum(each.false_learnt for each in timed)
    fixed = ", ".join(f"{sum(v.false_fixed[s] for v in timed)} at {s // 60} min" for s in FIXED)
    return (
        f"{len(found)} healthy recordings, {len(timed)} with steps and times "
        f"({sum(v.hours for v in timed):.1f} hours): {stalls} false stalls; {fixed}"
        + "".join(f"\n  {wrong}" for v in timed for wrong in v.wrongly)
    )


if __name__ == "__main__":
    main()
