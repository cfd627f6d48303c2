"""Simulate hangs of training runs on many hosts. Evaluate the blamed ranks, notifications, and delays.

    python bench/cluster.py --faults 500 --resume sim.jsonl  # report to coordinators over HTTP, in real time
    python bench/cluster.py --pure --faults 500              # evaluate all reports in one process
    python bench/cluster.py --pure --faults 9 --hosts 2048   # measure the evaluation of 16,384 ranks
    python bench/cluster.py --cost --faults 10               # measure the cost of ten runs for a coordinator

A model (``cluster_training.py``) provides the observations of each host. Stallwatch's own client converts
these observations into the reports of the host's agent (``cluster_agents.py``). Each coordinator runs in its
own process, and an HTTP server receives the notifications.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "machine")]

from cluster_agents import THRESHOLD, Fleet, Service, merged  # noqa: E402
from cluster_messages import Receiver, opens  # noqa: E402
from cluster_training import FAULTS, drawn, judged, parts  # noqa: E402
from ports import free_port  # noqa: E402

from stallwatch_rules.stacks.folding import over_hosts  # noqa: E402

#: Faults of the coordinators, the agents, and their connections. They are injected while a rank sleeps.
WATCHERS = ("coordinator", "partition", "late-agents", "lost-reports")
NOTICED_SECONDS = 40.0  #: seconds after which a hang without a notification counts as missed
SETTLE_SECONDS = 6.0  #: seconds to wait for more messages after the first message
CLOSING_SECONDS = 12.0
STARTING_SECONDS = 10.0
COST_SECONDS = 20.0


@dataclass
class Trial:
    """The outcome of one simulated hang, which is one line in the file that ``--resume`` names."""

    trial: int
    seed: int
    fault: str
    layout: str = ""
    counts: str = ""  #: counted collectives: none, joined, or done (see `COUNTS`)
    truth: str = ""
    hosts: str = ""  #: hosts of the ranks at fault
    blamed: str = ""
    host: str = ""  #: the host that the incident names
    why: str = ""
    confidence: float = 0.0
    verdict: str = ""  #: "right", "wrong", or "cannot tell"
    incidents: int = 1
    openings: int = 1
    closings: int = 1
    alone: int = 0  #: number of agents that notified people without a coordinator
    seconds: float | None = None  #: seconds from threshold to message, or processor seconds with --pure
    posts: int = 0
    slowest: float = 0.0  #: the longest time until a coordinator answered, in seconds
    processor: float = 0.0  #: share of one core that the coordinators used
    memory: float = 0.0  #: memory in MiB of the coordinator that uses more memory
    titles: list[str] = field(default_factory=list)


class Simulation:
    """Two coordinators that receive reports from agents, and a chat that receives the notifications."""

    def __init__(self, folder: Path) -> None:
        self.receiver = Receiver()
        self.pool = ThreadPoolExecutor(32)
        self.services = [
            Service(folder / f"coordinator-{index}", self.receiver.url, free_port()) for index in range(2)
        ]

    def close(self) -> None:
        """Stop the coordinators and the chat."""
        self.pool.shutdown()
        for service in self.services:
            service.kill()
        self.receiver.__exit__()

    def messages(self, run: str) -> list[tuple[float, bool, str]]:
        """Return, for each notification of a run, its time, its title, and whether it opens an incident."""
        return [
            (at, opens(body), str(body.get("title")))
            for at, body in self.receiver.messages
            if body.get("run") == run
        ]

    def trial(self, number: int, seed: int, fault: str, hosts: int, per_host: int, lost: float) -> Trial:
        """Inject a fault and return the outcome. See `Fleet` for the meaning of `lost`."""
        draw = random.Random(f"{seed}/{number}/{fault}/watchers")
        for service in self.services:
            service.start()
        found = drawn(seed, number, fault if fault in FAULTS else "sleep", hosts, per_host)
        training, truth = found.training, found.truth
        run = f"sim-{seed}-{number}"
        fleet = Fleet(
            run,
            found,
            self.services,
            draw,
            lost=3.0 if fault == "lost-reports" else lost,
            late=0.6 if fault == "late-agents" else 0.1,
        )
        self._break(fault, fleet, draw)
        before = [service.processor for service in self.services]
        began = time.monotonic()
        fleet.go(lambda: bool(self.messages(run) or fleet.alone), NOTICED_SECONDS, self.pool)
        fleet.go(lambda: False, SETTLE_SECONDS, self.pool)
        first = self.messages(run)
        due = fleet.due_at
        took = time.monotonic() - began
        used = sum(service.processor for service in self.services) - sum(before)
        memory = max(service.memory for service in self.services)
        kept = merged(self.services, run)
        fleet.heals_at = time.monotonic()
        fleet.go(lambda: any(not opening for _, opening, _ in self.messages(run)), CLOSING_SECONDS, self.pool)
        fleet.go(lambda: False, 2.0, self.pool)
        fleet.close()
        stacks = kept[0].stacks if kept else None
        wall = time.time() - time.monotonic()
        every = self.messages(run)
        return Trial(
            trial=number,
            seed=seed,
            fault=fault,
            layout=training.layout,
            counts=training.counts,
            truth=_shown(sorted(truth.ranks)),
            hosts=",".join(sorted(truth.hosts)),
            blamed=_shown(stacks.odd if stacks is not None else []),
            host=kept[0].host if kept else "",
            why=stacks.why if stacks is not None else "",
            confidence=stacks.confidence if stacks is not None else 0.0,
            verdict=judged(truth, stacks, training.host),
            incidents=len(merged(self.services, run)),
            openings=sum(opening for _, opening, _ in every) + len({item.id for item in fleet.alone}),
            closings=sum(not opening for _, opening, _ in every),
            alone=len(fleet.alone),
            seconds=round(first[0][0] - wall - due, 2) if first and due is not None else None,
            posts=fleet.posts,
            slowest=round(max(host.carrier.slowest for host in fleet.hosts), 2),
            processor=round(used / took, 4),
            memory=round(memory, 1),
            titles=[title for _, _, title in every],
        )

    def _break(self, fault: str, fleet: Fleet, draw: random.Random) -> None:
        """Schedule the fault if it affects a coordinator or the connections to it."""
        at = fleet.hangs_at + draw.uniform(0.0, THRESHOLD + 3.0)
        if fault == "coordinator":
            fleet.at.append((at, self.services[0].kill))
        if fault == "partition":
            cut = fleet.hosts[: draw.randrange(1, len(fleet.hosts))]
            fleet.at.append((at, lambda: [host.carrier.cut.add(0) for host in cut] and None))
            heals = at + draw.uniform(3.0, 12.0)
            fleet.at.append((heals, lambda: [host.carrier.cut.clear() for host in cut] and None))


def simulated(
    planned: Sequence[tuple[int, str]], seed: int, hosts: int, per_host: int, jobs: int, lost: float = 1.0
) -> Iterator[Trial]:
    """Run `jobs` trials at a time, each with its own coordinators. Yield each trial when it ends."""
    free: list[Simulation] = []
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="stallwatch-simulated-") as folder:
        for index in range(min(jobs, len(planned))):
            free.append(Simulation(Path(folder, str(index))))
        made = list(free)

        def run_trial(number: int, fault: str) -> Trial:
            with lock:
                simulation = free.pop()
            try:
                return simulation.trial(number, seed, fault, hosts, per_host, lost)
            finally:
                with lock:
                    free.append(simulation)

        try:
            with ThreadPoolExecutor(jobs) as pool:
                futures = [pool.submit(partial(run_trial, *each)) for each in planned]
                try:
                    for future in as_completed(futures):
                        yield future.result()
                except BaseException:
                    for future in futures:
                        future.cancel()
                    raise
        finally:
            for simulation in made:
                simulation.close()


def cost(seed: int, hosts: int, per_host: int, runs: int) -> Iterator[str]:
    """Yield the rows of a table that shows the cost of a coordinator.

    The table has a row for each run and phase. The phases are healthy, hanging (two rows), and recovered.
    """
    yield "| run | phase | posts per second | processor ms per 128 posts | share of one core | MiB |"
    yield "|--:|---|--:|--:|--:|--:|"
    with (
        tempfile.TemporaryDirectory(prefix="stallwatch-cost-") as folder,
        Receiver() as receiver,
        ThreadPoolExecutor(32) as pool,
    ):
        service = Service(Path(folder), receiver.url, free_port())
        time.sleep(STARTING_SECONDS)  # the coordinator imports the modules that messages need
        for run in range(runs):
            draw = random.Random(f"{seed}/{run}")
            fleet = Fleet(
                f"cost-{run}", drawn(seed, run, "sleep", hosts, per_host), [service], draw, lost=0.0, late=0.0
            )
            fleet.hangs_at = fleet.began + COST_SECONDS
            for phase in ("healthy", "hangs", "still hangs", "recovered"):
                if phase == "recovered":
                    fleet.heals_at = time.monotonic()
                before = service.processor, fleet.posts, time.monotonic()
                fleet.go(lambda: False, COST_SECONDS, pool)
                used, posts, took = (
                    now - then
                    for now, then in zip(
                        (service.processor, fleet.posts, time.monotonic()), before, strict=True
                    )
                )
                yield (
                    f"| {run + 1} | {phase} | {posts / took:.0f} | {128_000 * used / max(1, posts):.0f}"
                    f" | {used / took:.1%} | {service.memory:.0f} |"
                )
            fleet.close()
        service.kill()


def pure(planned: Sequence[tuple[int, str]], seed: int, hosts: int, per_host: int) -> Iterator[Trial]:
    """Evaluate the reports from all hosts in this process. Do not use coordinators."""
    for number, fault in planned:
        found = drawn(seed, number, fault, hosts, per_host)
        training, truth = found.training, found.truth
        reported = parts(found)
        began = time.process_time()
        stacks = over_hosts(reported, silent=sorted(truth.silent), world=training.world)
        took = time.process_time() - began
        yield Trial(
            trial=number,
            seed=seed,
            fault=fault,
            layout=training.layout,
            counts=training.counts,
            truth=_shown(sorted(truth.ranks)),
            hosts=",".join(sorted(truth.hosts)),
            blamed=_shown(stacks.odd),
            why=stacks.why,
            confidence=stacks.confidence,
            verdict=judged(truth, stacks, training.host),
            seconds=round(took, 4),
        )


def _shown(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks[:9])) + (f",… ({len(ranks)})" if len(ranks) > 9 else "")


def table(trials: Sequence[Trial]) -> str:
    """Return a table with a row for each fault and a row for all faults."""
    rows = [
        "| fault | trials | right | wrong | cannot tell | one incident | one opening message"
        " | no opening message | p50 | p99 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name in [*dict.fromkeys(trial.fault for trial in trials), "all"]:
        of = [trial for trial in trials if name in (trial.fault, "all")]
        seconds = sorted(item.seconds for item in of if item.seconds is not None)
        verdicts = [sum(item.verdict == word for item in of) for word in ("right", "wrong", "cannot tell")]
        shown = " | ".join(f"{count} ({count / len(of):.1%})" for count in verdicts)
        once, opened = sum(item.incidents == 1 for item in of), sum(item.openings == 1 for item in of)
        rows.append(
            f"| {name} | {len(of)} | {shown} | {once} | {opened} | {sum(item.openings == 0 for item in of)}"
            f" | {_at(seconds, 0.5):.2f} s | {_at(seconds, 0.99):.2f} s |"
        )
    return "\n".join(rows)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the remaining trials and print a summary of all trials."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=128)
    parser.add_argument("--ranks-per-host", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2, help="number of trials at a time")
    parser.add_argument("--lost", type=float, default=1.0, help="factor for lost and late reports")
    parser.add_argument("--only", action="append", default=[], choices=FAULTS + WATCHERS)
    parser.add_argument("--pure", action="store_true", help="evaluate without coordinators")
    parser.add_argument("--cost", action="store_true", help="measure only the cost of a coordinator")
    parser.add_argument("--wrong", action="store_true", help="list trials with an unexpected result")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE.jsonl", help="skip the trials in this file, and add new results"
    )
    given = parser.parse_args(arguments)
    if given.cost:
        for row in cost(given.seed, given.hosts, given.ranks_per_host, given.faults):
            print(row, flush=True)
        return 0
    faults = given.only or (FAULTS if given.pure else FAULTS + WATCHERS)
    planned = list(zip(range(given.faults), itertools.cycle(faults), strict=False))
    trials: list[Trial] = []
    if given.resume and given.resume.exists():
        trials = [Trial(**json.loads(line)) for line in given.resume.read_text().splitlines()]
    done = {(item.trial, item.seed, item.fault) for item in trials}
    left = [item for item in planned if (item[0], given.seed, item[1]) not in done]
    run = partial(simulated, jobs=given.jobs, lost=given.lost) if not given.pure else pure
    try:
        for trial in run(left, given.seed, given.hosts, given.ranks_per_host):
            trials.append(trial)
            if given.resume:
                with given.resume.open("a") as out:
                    out.write(json.dumps(asdict(trial), ensure_ascii=False) + "\n")
            if given.wrong and (trial.verdict, trial.incidents, trial.openings) != ("right", 1, 1):
                print(json.dumps(asdict(trial), ensure_ascii=False), flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(f"simulated: {given.hosts} hosts, {given.hosts * given.ranks_per_host:,} ranks")
    print(table(trials))
    if not given.pure and trials:
        used, memory = (
            sum(item.processor for item in trials) / len(trials),
            max(item.memory for item in trials),
        )
        print(f"coordinators of a run: {used:.1%} of one core during the hang, at most {memory:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
