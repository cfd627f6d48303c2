"""The stall table, row by row: the ranks' activity, and how long the run may stay quiet."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.quiet_periods import (
    FOREVER,
    LONG,
    SHORT,
    HostSnapshot,
    HostView,
    QuietPeriod,
    Ruling,
    ruling,
    run_ruling,
)
from stallwatch_rules.stacks.records import Counts, Frame, RankAnswer, Recorded, ThreadStack, Waiting

FLOOR = 30.0
PACKAGES = "/usr/lib/python3/dist-packages/"
LOOP = Frame("/w/train.py", 40, "main")


def rank(number: int, *inner: Frame, **about: Any) -> RankAnswer:
    """Return a rank whose main thread is in these calls below the training loop."""
    return RankAnswer(
        number, 100 + number, "probe", threads=(ThreadStack((LOOP, *inner), main=True),), **about
    )


def own(function: str, line: int = 7) -> Frame:
    return Frame("/w/train.py", line, function)


def library(file: str, function: str) -> Frame:
    return Frame(PACKAGES + file, 1, function)


def judged(*looks: list[RankAnswer], phase: Any = "train", seconds: float = 10.0, **about: Any) -> Ruling:
    spell = QuietPeriod(phase, floor=FLOOR, suspicion=about.pop("suspicion", FLOOR), **about)
    found = ruling(
        [HostSnapshot(1000.0 + seconds * number, ranks) for number, ranks in enumerate(looks)], spell
    )
    assert found is not None
    return found


ALL_REDUCE = library("torch/distributed/distributed_c10d.py", "all_reduce")
BARRIER = library("torch/distributed/distributed_c10d.py", "barrier")
SAVE = library("torch/serialization.py", "save")
LOADER = library("torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__")
COMPILE = library("torch/_inductor/compile_fx.py", "compile_fx")
REQUESTS = library("requests/sessions.py", "Session.send")
CHILD = Frame("/usr/lib/python3.11/subprocess.py", 1, "Popen.wait")
GENERATE = library("transformers/generation/utils.py", "GenerationMixin.generate")
PDB = Frame("/usr/lib/python3.11/pdb.py", 5, "Pdb.interaction")

ROWS = [
    # rank 0's activity, facts about the pause, status, reason, seconds
    ("own code while training", rank(0, own("score")), {}, "stalled", "code", FLOOR),
    ("a file lock", rank(0, own("cache"), lock_holder="PID 7"), {}, "stalled", "lock", FLOOR),
    ("a save", rank(0, own("checkpoint"), SAVE), {}, "waiting", "save", LONG * FLOOR),
    ("own code in a save", rank(0, own("dump")), {"phase": "save"}, "waiting", "save", LONG * FLOOR),
    ("compiling", rank(0, COMPILE), {}, "waiting", "compilation", LONG * FLOOR),
    ("before any rhythm", rank(0, own("f")), {"rhythm_known": False}, "waiting", "first-steps", LONG * FLOOR),
    (
        "importing",
        rank(0, Frame("<frozen importlib._bootstrap>", 1, "_load")),
        {},
        "waiting",
        "start-up",
        600.0,
    ),
    ("an evaluation by name", rank(0, own("evaluate")), {}, "waiting", "evaluation", SHORT * FLOOR),
    ("an evaluation by metric", rank(0, own("bleu_on_dev")), {}, "waiting", "evaluation", SHORT * FLOOR),
    ("an evaluation by phase", rank(0, own("f")), {"phase": "eval"}, "waiting", "evaluation", SHORT * FLOOR),
    (
        "an evaluation that was seen before",
        rank(0, own("compute_metrics")),
        {"phase": "eval", "longest": 20.0},
        "waiting",
        "evaluation",
        60.0,
    ),
    (
        "an evaluation that is known to be quick",
        rank(0, own("compute_metrics")),
        {"phase": "eval", "longest": 1.0},
        "waiting",
        "evaluation",
        FLOOR,
    ),
    (
        "the first batch of an epoch",
        rank(0, LOADER, counters={"epoch_batches": 0}),
        {},
        "waiting",
        "data",
        SHORT * FLOOR,
    ),
    (
        "a batch in mid-epoch",
        rank(0, LOADER, counters={"epoch_batches": 5}),
        {},
        "stalled",
        "data",
        FLOOR,
    ),
    ("a batch that nobody counts", rank(0, LOADER), {}, "waiting", "data", 75.0),
    ("the network", rank(0, own("push"), REQUESTS), {}, "waiting", "network", SHORT * FLOOR),
    ("a first generation", rank(0, GENERATE), {"rollout": 7200.0}, "waiting", "rollout", 7200.0),
    ("generation", rank(0, GENERATE), {"phase": "rollout", "longest": 40.0}, "waiting", "rollout", 120.0),
    ("a debugger's prompt", rank(0, own("f"), PDB), {}, "paused", "debugger", FOREVER),
    ("a suspended job", rank(0, own("f")), {"suspended": True}, "paused", "suspended", FOREVER),
    (
        "a call site that took a minute before",
        rank(0, own("push"), REQUESTS),
        {"sites": {"network send push": 60.0}},
        "waiting",
        "network",
        180.0,
    ),
]


@pytest.mark.parametrize(
    ("what", "seen", "known", "status", "reason", "limit"), ROWS, ids=lambda row: str(row)[:40]
)
def test_activity_of_a_rank_determines_its_limit(
    what: str, seen: RankAnswer, known: dict[str, Any], status: str, reason: str, limit: float
) -> None:
    found = judged([seen], **known)
    assert (found.status, found.reason, found.limit) == (status, reason, limit), what


def test_limit_is_at_least_the_learned_threshold() -> None:
    found = judged([rank(0, own("compute_metrics"))], phase="eval", longest=1.0, suspicion=300.0)
    assert found.limit == 300.0


def test_waiting_ranks_inherit_the_limit() -> None:
    found = judged([rank(0, own("evaluate")), rank(1, BARRIER), rank(2, BARRIER)])
    assert (found.status, found.reason, found.rank, found.limit) == (
        "waiting",
        "evaluation",
        0,
        SHORT * FLOOR,
    )
    found = judged([rank(0, own("score")), rank(1, ALL_REDUCE)])
    assert (found.status, found.rank, found.place) == ("stalled", 0, "train.py:7 in score")


@pytest.mark.parametrize("condition", ["ended", "stopped"])
def test_ended_or_stopped_rank_is_a_stall(condition: Any) -> None:
    gone = RankAnswer(1, 101, condition=condition)
    found = judged([rank(0, own("evaluate")), gone])
    assert (found.status, found.reason, found.rank, found.limit) == ("stalled", condition, 1, FLOOR)


def test_successful_rank_is_missed_only_by_waiting_ranks() -> None:
    left = RankAnswer(1, 101, condition="ended", left=True)
    assert judged([rank(0, own("merge"), SAVE), left]).reason == "save"
    found = judged([rank(0, ALL_REDUCE), left])
    assert (found.status, found.reason, found.rank) == ("stalled", "ended", 1)


def test_lock_is_waited_for_at_the_start_and_in_evaluations() -> None:
    locked = rank(0, own("cache"), lock_holder="PID 7")
    assert judged([locked], rhythm_known=False).limit == LONG * FLOOR
    assert judged([locked], phase="eval").limit == SHORT * FLOOR


def waiting(number: int, joined: int, operation: str = "all_reduce") -> RankAnswer:
    recorded = Recorded(2, {0: Counts(joined, joined - 1)}, waiting=(Waiting(0, "0", joined, operation),))
    return rank(number, ALL_REDUCE, recorded=recorded)


def test_missed_collective_in_an_evaluation_is_a_stall() -> None:
    found = judged([waiting(0, 47), waiting(1, 46, "barrier")], phase="eval")
    assert (found.status, found.rank) == ("stalled", 1)
    assert judged([waiting(0, 47), waiting(1, 47)], phase="eval").status == "waiting"
    assert judged([waiting(0, 47), waiting(1, 47)]).status == "stalled"


def test_collective_save_of_one_rank_is_a_stall() -> None:
    def saves(number: int) -> RankAnswer:
        gather = library("deepspeed/runtime/engine.py", "DeepSpeedEngine.save_16bit_model")
        stack = ThreadStack((LOOP, own("export"), gather), main=True)
        return msgspec.structs.replace(waiting(number, 47, "all_gather"), threads=(stack,))

    for other, odd in ((waiting(1, 47, "barrier"), 0), (waiting(1, 46, "barrier"), 1)):
        found = judged([saves(0), other], phase="save")
        assert (found.status, found.rank) == ("stalled", odd)
    assert judged([saves(0), saves(1)], phase="save").limit == LONG * FLOOR


def test_stalls_after_the_training_need_separated_ranks() -> None:
    found = judged([waiting(0, 47), waiting(1, 46, "barrier")], phase="idle")
    assert (found.status, found.rank) == ("stalled", 1)
    looks = [[rank(0, own("merge")), rank(1, BARRIER)], [waiting(0, 47), waiting(1, 47)]]
    looks += [[rank(0, own("merge")), RankAnswer(1, 101, condition="ended")]]
    for ranks in looks:
        assert ruling([HostSnapshot(0.0, ranks)], QuietPeriod("idle", FLOOR, FLOOR)) is None


AFTER_STEP = [
    # activities, status, rank, reason, seconds
    ([rank(0, own("reshuffle"), processor=5.0), rank(1, BARRIER)], "waiting", 0, "last-step", SHORT * FLOOR),
    ([rank(0, own("rebuild"), processor=5.0)], "waiting", 0, "last-step", SHORT * FLOOR),
    ([rank(0, own("cache"), lock_holder="PID 7")], "waiting", 0, "last-step", SHORT * FLOOR),
    ([rank(0, LOADER, counters={"epoch_batches": 5})], "waiting", 0, "data", SHORT * FLOOR),
    ([rank(0, own("export"), SAVE)], "waiting", 0, "save", LONG * FLOOR),
    ([rank(0, own("push"), REQUESTS)], "waiting", 0, "network", SHORT * FLOOR),
    ([rank(0, BARRIER), rank(1, BARRIER)], "waiting", None, "others", SHORT * FLOOR),
]


@pytest.mark.parametrize(("ranks", "status", "odd", "reason", "limit"), AFTER_STEP)
def test_rank_that_rests_after_the_last_step_is_a_stall_after_minutes(
    ranks: list[RankAnswer], status: str, odd: int | None, reason: str, limit: float
) -> None:
    """A counter that reached its total might count only the first epoch."""
    found = judged(ranks, ranks, phase="idle", only_reached_total=True)
    assert (found.status, found.rank, found.reason, found.limit) == (status, odd, reason, limit)


def test_work_after_the_last_step_can_take_hours() -> None:
    before, after = (rank(0, own("cluster"), processor=seconds) for seconds in (5.0, 14.0))
    assert judged([before], [after], phase="idle", only_reached_total=True).limit == 4 * 3600
    resting = judged([after], [after], phase="idle", only_reached_total=True, worked=100.0)
    assert resting.limit == SHORT * FLOOR + 100.0
    before, after = (rank(0, own("zip"), CHILD, children=seconds) for seconds in (5.0, 14.0))
    assert judged([before], [after], phase="idle", only_reached_total=True).limit >= SHORT * FLOOR


@pytest.mark.parametrize("phase", ["train", "idle"])
def test_ranks_that_have_all_ended_are_no_stall(phase: Any) -> None:
    ended = [RankAnswer(number, 100 + number, condition="ended", left=True) for number in (0, 1)]
    period = QuietPeriod(phase, FLOOR, FLOOR, only_reached_total=phase == "idle")
    for ranks in (ended[:1], ended):
        assert ruling([HostSnapshot(0.0, ranks)], period) is None
    assert judged([ended[0], rank(1, BARRIER)], phase=phase, only_reached_total=True).reason == "ended"


@pytest.mark.parametrize("name", ["batches", "forwards", "collectives", "switches"])
def test_counters_of_the_probe_are_signs_of_life(name: str) -> None:
    before, after = (rank(0, own("loop"), counters={name: count}) for count in (3.0, 4.0))
    assert judged([before], [after]).status == "alive"
    assert judged([before], [before]).status == "stalled"


def test_transferred_bytes_are_a_sign_of_life_in_a_save() -> None:
    saves = [rank(0, SAVE, transferred=size) for size in (1_000, 90_000)]  # ten seconds apart
    prints = [rank(0, own("loop"), transferred=size) for size in (1_000, 90_000)]
    assert judged([saves[0]], [saves[1]]).status == "alive"
    assert judged([prints[0]], [prints[1]]).status == "stalled"
    exports = [rank(0, own("export"), transferred=size) for size in (1_000, 5_000_000)]
    assert judged([exports[0]], [exports[1]]).status == "alive", (
        "a save of one's own writes faster than prints"
    )


def test_generation_in_progress_extends_the_limit() -> None:
    looks = [[rank(0, GENERATE, counters={"forwards": float(count)})] for count in (5, 9)]
    found = judged(*looks, phase="rollout", longest=2.0)
    assert (found.status, found.limit) == ("waiting", LONG * FLOOR)
    assert judged(looks[0], looks[0], phase="rollout", longest=2.0).limit == FLOOR


def test_computing_loop_without_progress_is_busy() -> None:
    looks = [[rank(0, own("collapse", line), processor=line * 0.9)] for line in (10, 21)]
    found = judged(*looks)
    assert (found.status, found.place) == ("busy", "train.py:21 in collapse") and 30.0 < found.limit <= 60.0
    assert judged(*looks, repeating=True).status == "stalled"
    assert judged(*looks, sites={"code  collapse": 50.0}).limit == 150.0


@pytest.mark.parametrize(
    ("lines", "world", "ranks", "share", "status"),
    [
        ([21, 9, 21, 21], 2, 1, 0.9, "busy"),  # a hot line is in the last two snapshots
        ([21, 9, 21, 21], 1, 2, 0.5, "busy"),
        ([21, 9, 21, 21], 1, 1, 0.1, "stalled"),  # a loop that waits between two checks
        ([21, 21, 21], 1, 1, 0.9, "busy"),  # a long call of a library
        ([21, 21, 21], 2, 1, 0.9, "stalled"),  # can wait for a device, which waits for other ranks
        ([21, 21, 21], 0, 2, 0.9, "stalled"),
        ([21], 1, 1, 0.9, "stalled"),
    ],
)
def test_computing_is_seen_in_all_snapshots(
    lines: list[int], world: int, ranks: int, share: float, status: str
) -> None:
    looks = [
        [
            rank(number, own("mine", line), processor=at * 10 * share, recorded=Recorded(world))
            for number in range(ranks)
        ]
        for at, line in enumerate(lines)
    ]
    assert judged(*looks).status == status


def test_sleeping_loop_is_a_stall() -> None:
    looks = [[rank(0, own("poll", line), processor=1.0)] for line in (10, 11)]
    assert judged(*looks).status == "stalled"


def test_computing_child_process_is_waited_for() -> None:
    busy = [[rank(0, own("build"), CHILD, children=seconds)] for seconds in (1.0, 9.0)]
    idle = [[rank(0, own("build"), CHILD, children=1.0)] for _ in range(2)]
    assert judged(*busy).reason == "process" and judged(*busy).limit == SHORT * FLOOR
    assert judged(*idle).status == "stalled"


def test_transferring_child_process_is_waited_for() -> None:
    def looks(*moved: dict[int, int]) -> list[list[RankAnswer]]:
        return [[rank(0, own("build"), CHILD, children=1.0, children_transferred=item)] for item in moved]

    assert judged(*looks({7: 0}, {7: 9_000_000})).reason == "process"
    assert judged(*looks({7: 0}, {7: 9_000})).status == "stalled"
    assert judged(*looks({7: 0}, {8: 9_000_000})).status == "stalled", "a retry starts another process"


@pytest.mark.parametrize(
    ("function", "phase"), [("save_checkpoint", "train"), ("upload_checkpoint", "train"), ("push", "save")]
)
@pytest.mark.parametrize("inner", [CHILD, REQUESTS])
def test_save_that_waits_for_something_is_a_save(function: str, phase: str, inner: Frame) -> None:
    def saving(moved: int) -> list[RankAnswer]:
        return [rank(0, own(function), inner, children=1.0, children_transferred={7: moved})]

    found = judged(saving(0), saving(0), phase=phase)
    assert (found.status, found.reason, found.limit) == ("waiting", "save", LONG * FLOOR)
    flows = judged(saving(0), saving(9_000_000), phase=phase)
    assert flows.status == ("alive" if inner is CHILD else "waiting")


@pytest.mark.parametrize("function", ["_checkpointed_forward", "saved_tensors"])
def test_functions_around_the_training_are_not_saves(function: str) -> None:
    looks = [[rank(0, own(function), CHILD, children=1.0)] for _ in range(2)]
    assert judged(*looks).status == "stalled"


def test_ranks_without_stacks_have_no_ruling() -> None:
    assert ruling([HostSnapshot(0.0, [RankAnswer(0, 100)])], QuietPeriod("train", FLOOR, FLOOR)) is None
    assert ruling([], QuietPeriod("train", FLOOR, FLOOR)) is None


@pytest.mark.parametrize(("saves", "seconds"), [({}, 600.0), ({"dump": 2.0}, 30.0), ({"dump": 40.0}, 120.0)])
def test_save_can_take_three_times_its_longest_duration(saves: dict[str, float], seconds: float) -> None:
    saving = rank(0, own("Keeper.dump"), SAVE, own("Upload.write"), saves=saves | {"main": 500.0})
    assert judged([saving]).limit == seconds


CELL = Frame(PACKAGES + "IPython/core/interactiveshell.py", 9, "InteractiveShell.run_code")
KERNEL = Frame(PACKAGES + "ipykernel/kernelapp.py", 5, "IPKernelApp.start")
LOOP_WAITS = Frame("/usr/lib/python3.11/selectors.py", 4, "EpollSelector.select")


def test_notebook_is_paused_only_between_cells() -> None:
    idle, cell = (
        RankAnswer(0, 1, "probe", threads=(ThreadStack(frames, main=True),))
        for frames in ((KERNEL, LOOP_WAITS), (KERNEL, CELL, own("label")))
    )
    assert judged([idle]).status == "paused"
    assert judged([cell]).status == "stalled"


def beside(number: int, joined: int = 47, world: int = 4) -> RankAnswer:
    """Return a rank that waits for ranks of other hosts as well."""
    return msgspec.structs.replace(
        waiting(number, joined),
        recorded=msgspec.structs.replace(waiting(number, joined).recorded, world_size=world),
    )


def view(host: str, *ranks: RankAnswer, threshold: float | None = FLOOR, **about: Any) -> HostView:
    """Return the view of one host's agent, with its own judgement."""
    spell = QuietPeriod(about.pop("phase", "train"), floor=FLOOR, suspicion=threshold or FLOOR, **about)
    found = ruling([HostSnapshot(0.0, ranks)], spell)
    return HostView(host, found, 40.0, threshold, fold(ranks, time=0.0))


def away(view: HostView, **about: Any) -> HostView:
    return msgspec.structs.replace(view, **about)


N1, N2 = view("n1", beside(0), beside(1)), view("n2", beside(2), beside(3), threshold=45.0)
SCORES = view("n2", beside(2), rank(3, own("score")), threshold=45.0)
EVALUATES = view("n2", beside(2), rank(3, own("evaluate")))
RUNS: dict[str, tuple[list[HostView], list[str], tuple[str, float, str, int | None] | None]] = {
    "all wait for each other": ([N1, N2], [], ("stalled", 45.0, "behind", None)),
    "a rank has left out a collective": (
        [N1, view("n2", beside(2, 46), beside(3))],
        [],
        ("stalled", FLOOR, "behind", 2),
    ),
    "a rank of one host is in its own code": ([N1, SCORES], [], ("stalled", 45.0, "code", 3)),
    "a rank of one host evaluates": ([N1, EVALUATES], [], ("waiting", SHORT * FLOOR, "evaluation", 3)),
    "each rank of a host has an agent": (
        [N1, view("n2", beside(2)), view("n2", beside(3))],
        [],
        ("stalled", FLOOR, "behind", None),
    ),
    "a host has not been heard of yet": ([N1], [], None),
    "a host does not answer": ([N1], ["n2"], ("stalled", FLOOR, "behind", 2)),
    "a host has not looked yet": ([N1, away(N2, stacks=None)], [], None),
    "a host sees signs of life": ([N1, away(N2, ruling=Ruling("alive", FLOOR))], [], None),
    "no host has learnt a threshold": ([away(N1, threshold=None), away(N2, threshold=None)], [], None),
    "nobody": ([], [], None),
}


@pytest.mark.parametrize(("views", "silent", "expected"), RUNS.values(), ids=RUNS)
def test_combined_hosts_decide_together(
    views: list[HostView], silent: list[str], expected: tuple[str, float, str, int | None] | None
) -> None:
    found = run_ruling(views, silent=silent, world=4)
    assert (found and (found.status, found.limit, found.reason, found.rank)) == expected


def test_host_without_others_reports_no_stall() -> None:
    """Without torch's counters, the host takes its own ranks for all ranks."""
    alone = view("n1", rank(0, ALL_REDUCE), rank(1, ALL_REDUCE))
    assert alone.ruling is not None and alone.ruling.status == "stalled"
    assert run_ruling([alone, EVALUATES], world=4) == EVALUATES.ruling
    assert run_ruling([alone], world=4) is None


def test_waiting_host_follows_the_ruling_of_the_run() -> None:
    run = Ruling("stalled", 45.0, "behind", 9, "train.py:7 in score")
    assert judged([beside(0), beside(1)]).limit == SHORT * FLOOR
    assert judged([beside(0), beside(1)], run=run) == run
    assert judged([beside(0), rank(1, own("evaluate"))], run=run).reason == "evaluation"
    assert judged([waiting(0, 47), waiting(1, 47)], run=run).rank is None
