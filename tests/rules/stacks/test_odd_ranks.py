"""The ranks that hold up others, and their description: from stacks, torch's counters and the kernel."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stallwatch_rules.locale import render
from stallwatch_rules.report.stacks import folded, listing
from stallwatch_rules.stacks.flight import read_recorder
from stallwatch_rules.stacks.folding import fold
from stallwatch_rules.stacks.records import Counts, Frame, RankAnswer, StallStacks, ThreadStack
from stallwatch_rules.stacks.sentences import sentence

SITE = "/venv/lib/python3.11/site-packages"
TRAIN = Frame("/w/train.py", 42, "step", "__main__")
REDUCE = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", 3032, "all_reduce")
WRAPPER = Frame(f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper")
LOADER = Frame(f"{SITE}/torch/utils/data/dataloader.py", 708, "_BaseDataLoaderIter.__next__")
QUEUE = Frame("/usr/lib/python3.11/multiprocessing/queues.py", 113, "Queue.get")


def rank(number: int, *frames: Frame, recorded: Any = None, **about: Any) -> RankAnswer:
    threads = (
        (ThreadStack((Frame("/w/train.py", 99, "main"), *frames), "MainThread", True),) if frames else ()
    )
    origin = "probe" if frames else ""
    return RankAnswer(
        number, 100 + number, origin, threads=threads, recorded=read_recorder(recorded or {}), **about
    )


def recorder(
    joined: int, done: int, operation: str = "all_reduce", world: int = 4, group: int = 0
) -> dict[str, Any]:
    """Return a record as torch 2.13 writes it, with the additions of the probe."""
    entry = {
        "collective_seq_id": joined,
        "pg_id": group,
        "process_group": [str(group), "default_pg"],
        "profiling_name": f"gloo:{operation}",
        "state": "scheduled",
        "is_p2p": False,
    }
    status = {"last_enqueued_collective": str(joined), "last_completed_collective": str(done)}
    return {"world_size": world, "status": {str(group): status}, "groups": [], "entries": [entry]}


def folded_of(*ranks: RankAnswer) -> StallStacks:
    return fold(ranks, time=1_795_000_000.0, seconds=0.25)


WAIT = (TRAIN, WRAPPER, REDUCE)


def test_rank_elsewhere_is_odd_while_others_wait() -> None:
    found = folded_of(rank(0, *WAIT), rank(1, TRAIN, LOADER, QUEUE), rank(2, *WAIT), rank(3, *WAIT))
    assert (found.odd, found.why) == ([1], "elsewhere")
    assert render(sentence(found)) == (
        "Ranks 0, 2, 3 wait in all_reduce (train.py:42 in step); "
        "rank 1 is in DataLoader.__next__ (data loading, train.py:42 in step)."
    )
    assert render(sentence(found), "zh") == (
        "rank 0, 2, 3 都在等 all_reduce（train.py:42 的 step）；"
        "rank 1 停在 DataLoader.__next__（数据加载，train.py:42 的 step）。"
    )


def test_reward_function_below_a_generating_frame_is_recognized() -> None:
    """The order of frames is that of TRL 1.16; the other ranks wait for that rank."""
    trl = f"{SITE}/trl/trainer/grpo_trainer.py"
    scored = (
        Frame(trl, 2451, "GRPOTrainer._generate_and_score_completions"),
        Frame(trl, 1623, "GRPOTrainer._calculate_rewards"),
        Frame("/w/grpo.py", 15, "judge"),
        Frame("/usr/lib/python3.11/socket.py", 295, "socket.accept"),
    )
    found = folded_of(rank(0, TRAIN, *scored[:2], REDUCE), rank(1, TRAIN, *scored))
    assert render(sentence(found)).endswith("rank 1 is in judge (reward function, grpo.py:15 in judge).")
    assert render(sentence(found), "zh").endswith("rank 1 停在 judge（奖励函数，grpo.py:15 的 judge）。")


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([("trl/trainer/grpo_trainer.py", "_generate_and_score_completions")], "code"),
        ([("trl/trainer/grpo_trainer.py", "_generate_single_turn")], "rollout"),
        ([("swift/trainers/rlhf_trainer/grpo_trainer.py", "_generate_and_score_completions")], "code"),
        ([("swift/trainers/rlhf_trainer/grpo_trainer.py", "_compute_rewards_per_func")], "reward"),
        ([("verl/workers/reward_manager/naive.py", "__call__")], "reward"),
        ([("verl/workers/fsdp_workers.py", "generate_sequences")], "rollout"),
        ([("openrlhf/utils/remote_rm_utils.py", "remote_rm_fn")], "reward"),
        ([("torch/_dynamo/eval_frame.py", "compile_wrapper")], "code"),
        ([("torch/_dynamo/convert_frame.py", "_compile")], "compile"),
    ],
)
def test_calling_frame_does_not_determine_the_phase(frames: list[tuple[str, str]], kind: str) -> None:
    stack = [Frame(f"{SITE}/{file}", 7, function) for file, function in frames]
    assert folded_of(rank(0, *WAIT), rank(1, *stack, Frame("/w/own.py", 3, "slow"))).groups[-1].kind == kind


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("/w/swift/app/train.py", "generate"),
        ("/w/verl/train.py", "_generate_data"),
        ("/home/x/trl/my.py", "get_reward"),
        ("/home/x/trl/trainer/my.py", "get_reward_model"),
        ("/w/verl/utils/dataset/rl_dataset.py", "compute_score"),
    ],
)
def test_user_code_in_a_folder_named_like_a_package_is_user_code(file: str, function: str) -> None:
    accept = Frame("/usr/lib/python3.11/socket.py", 295, "socket.accept")
    found = folded_of(rank(0, *WAIT), rank(1, Frame(file, 7, function), accept))
    assert found.groups[-1].kind == "network" and "rank 1 waits for the network" in render(sentence(found))


RAY = (
    Frame(f"{SITE}/ray/_private/client_mode_hook.py", 104, "client_mode_hook.<locals>.wrapper"),
    Frame(f"{SITE}/ray/_private/worker.py", 2858, "get"),
    Frame(f"{SITE}/ray/_private/worker.py", 958, "Worker.get_objects"),
)


def test_driver_waits_for_its_actors() -> None:
    found = folded_of(rank(0, TRAIN, *RAY), rank(1, Frame("/w/actor.py", 7, "score")))
    assert found.odd == [1]
    assert render(sentence(found)) == (
        "Rank 0 waits in ray.get (train.py:42 in step); rank 1 is at actor.py:7 in score."
    )
    waiting = (*RAY[:1], Frame(RAY[1].file, 3103, "wait"))
    assert folded_of(rank(0, *WAIT), rank(1, TRAIN, *waiting)).groups[-1].what == "ray.wait"


def test_uncalled_actor_waits() -> None:
    loop = Frame(RAY[1].file, 1069, "Worker.main_loop")
    found = folded_of(rank(0, loop), rank(1, loop, Frame("/w/actor.py", 7, "score")))
    assert found.odd == [1]
    assert render(sentence(found)).startswith("Rank 0 waits in ray.main_loop")


def test_requested_method_of_an_actor_is_shown() -> None:
    verl = Frame(f"{SITE}/verl/workers/fsdp_workers.py", 7, "generate_sequences")
    assert folded_of(rank(0, *WAIT), rank(1, TRAIN, verl, *RAY)).groups[-1].kind == "rollout"


def test_flight_recorder_names_the_missed_rank() -> None:
    """Rank 2 has already joined the collective asynchronously."""
    found = folded_of(
        rank(0, *WAIT, recorded=recorder(7, 6)),
        rank(1, TRAIN, LOADER, recorded=recorder(6, 6)),
        rank(2, Frame("/w/log.py", 7, "write"), recorded=recorder(7, 6)),
    )
    assert found.odd == [1]
    assert (
        "rank 1 is in DataLoader.__next__ (data loading, train.py:42 in step, 6 collectives joined)."
        in render(sentence(found))
    )


def test_rank_with_fewer_collectives_is_odd() -> None:
    found = folded_of(*(rank(n, *WAIT, recorded=recorder(204 if n == 2 else 205, 203)) for n in range(4)))
    assert (found.odd, found.why) == ([2], "behind")
    assert "204 collectives joined" in render(sentence(found)) and "205 collectives joined" in render(
        sentence(found)
    )


@pytest.mark.parametrize(("language", "says"), [("en", "Ranks 0, 2 wait in"), ("zh", "rank 0, 2 ")])
def test_ranks_whose_last_steps_differ_share_a_clause(language: str, says: str) -> None:
    found = folded_of(
        rank(0, *WAIT, step=40), rank(1, TRAIN, LOADER, QUEUE, step=40), rank(2, *WAIT, step=41)
    )
    assert [group.ranks for group in found.groups] == [[0], [2], [1]]
    assert says in render(sentence(found), language)


def test_rank_with_another_operation_is_odd() -> None:
    ranks = [
        rank(n, *WAIT, recorded=recorder(9, 8, "broadcast" if n == 3 else "all_reduce")) for n in range(4)
    ]
    found = folded_of(*ranks)
    assert (found.odd, found.why) == ([3], "diverged")


def test_both_of_two_ranks_are_named() -> None:
    found = folded_of(
        rank(0, *WAIT, recorded=recorder(9, 8, world=2)),
        rank(1, *WAIT, recorded=recorder(9, 8, "broadcast", world=2)),
    )
    assert (found.odd, found.why) == ([0, 1], "diverged")


def test_members_of_another_group_are_not_odd() -> None:
    given = recorder(5, 4)
    given["groups"] = [{"names": ["0"], "ranks": "0-1"}]
    found = folded_of(
        rank(0, *WAIT, recorded=given),
        rank(1, TRAIN, LOADER, recorded=recorder(4, 4)),
        rank(2, TRAIN, LOADER, recorded=recorder(3, 3)),
    )
    assert found.odd == [1]


@pytest.mark.parametrize(
    ("condition", "says"),
    [("stopped", "rank 1 is stopped by a signal such as SIGSTOP"), ("ended", "rank 1 has ended")],
)
def test_process_state_has_precedence(condition: Any, says: str) -> None:
    found = folded_of(rank(0, *WAIT), rank(1, condition=condition), rank(2, TRAIN, LOADER))
    assert (found.odd, found.why) == ([1], condition)
    assert says in render(sentence(found))


def test_rank_waits_if_its_backward_thread_waits() -> None:
    backward = Frame(f"{SITE}/torch/autograd/graph.py", 825, "_engine_run_backward")
    threads = (
        ThreadStack((TRAIN, backward), "MainThread", True),
        ThreadStack((Frame(f"{SITE}/deepspeed/comm/torch.py", 5, "TorchBackend.reduce"), REDUCE), "Dummy-1"),
    )
    found = folded_of(RankAnswer(0, 1, "probe", threads=threads), rank(1, TRAIN, LOADER))
    assert found.odd == [1]
    assert render(sentence(found)).startswith("Rank 0 waits in all_reduce (train.py:42 in step);")


def test_flight_recorder_shows_a_wait_in_compiled_code() -> None:
    """A device synchronization shows no Python frame but the library's."""
    sync = Frame(f"{SITE}/torch/cuda/__init__.py", 1108, "synchronize")
    found = folded_of(rank(0, TRAIN, sync, recorded=recorder(7, 6, "all_gather_base")), rank(1, TRAIN))
    assert found.odd == [1]
    assert render(sentence(found)).startswith("Rank 0 waits in all_gather (train.py:42 in step")


def test_equal_ranks_without_a_wait_have_no_odd_rank() -> None:
    found = folded_of(*(rank(n, TRAIN, LOADER) for n in range(8)))
    assert found.odd == [] and len(found.groups) == 1
    assert render(sentence(found)) == (
        "All ranks (0–7) are in DataLoader.__next__ (data loading, train.py:42 in step)."
    )


def test_missing_ranks_on_another_host_are_unknown() -> None:
    found = folded_of(*(rank(n, *WAIT, recorded=recorder(5, 4, world=8)) for n in range(4)))
    assert (found.odd, found.elsewhere) == ([], 4)
    assert render(sentence(found)).endswith("; 4 other ranks are on other hosts.")


def test_ranks_without_stacks_have_no_odd_rank() -> None:
    assert render(sentence(folded_of(rank(0), rank(1)))) == "All ranks (0, 1) did not answer."
    assert render(sentence(folded_of())) == ""


CALLS = [
    ("megatron/core/pipeline_parallel/p2p_communication.py", "recv_forward", "collective", "waits in recv_f"),
    ("torch/distributed/pipelining/schedules.py", "_wait_batch_p2p", "collective", "waits in recv"),
    ("filelock/_api.py", "BaseFileLock.acquire", "lock", "waits for a file lock"),
    ("transformers/generation/utils.py", "GenerationMixin._sample", "rollout", "is in generate (generation"),
    ("deepspeed/runtime/engine.py", "DeepSpeedEngine.save_checkpoint", "save", "is in save_checkpoint"),
    ("torch/serialization.py", "_save", "save", "is in torch.save (checkpoint"),
    ("torch/distributed/distributed_c10d.py", "init_process_group", "joining", "waits in init_process"),
    ("deepspeed/runtime/zero/partition_parameters.py", "AllGatherHandle.wait", "collective", "waits in wait"),
    ("torch/_inductor/compile_fx.py", "compile_fx", "compile", "is in compilation"),
    ("requests/sessions.py", "Session.send", "network", "waits for the network"),
    ("transformers/modeling_utils.py", "PreTrainedModel.from_pretrained", "load", "is in from_pretrained"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "function", "kind", "says"), CALLS)
def test_library_calls_have_their_activity(file: str, function: str, kind: str, says: str) -> None:
    found = folded_of(rank(0, TRAIN, Frame(f"{SITE}/{file}", 1, function), QUEUE))
    assert found.groups[0].kind == kind
    assert f"Rank 0 {says}" in render(sentence(found))


def test_import_is_not_a_network_wait() -> None:
    importing = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    found = folded_of(
        rank(0, TRAIN, importing, Frame(f"{SITE}/urllib3/__init__.py", 1, "<module>"), importing)
    )
    assert render(sentence(found)) == "Rank 0 is importing modules (train.py:42 in step)."


@pytest.mark.parametrize(
    "expected",
    [
        None,
        3,
        {"status": 3, "entries": [3, {}], "groups": [3, {"names": 3}], "world_size": "x"},
        {"world_size": float("inf"), "status": {"\N{SUPERSCRIPT TWO}": {"last_enqueued_collective": 1}}},
        {"groups": [{"names": ["0"], "ranks": "9" * 5000}]},
    ],
)
def test_unexpected_recorder_content_is_ignored(expected: Any) -> None:
    assert read_recorder(expected).waiting == ()


@pytest.mark.parametrize("group", ["-1", "1_0", " 3 ", "\u0663", "9" * 19, 1.9, True, None, -1, 10**18])
def test_invalid_collective_numbers_are_ignored(group: Any) -> None:
    found = recorder(7, 6, group=group)
    assert read_recorder(found).waiting == ()
    assert read_recorder({**found, "world_size": group}).world_size == 0
    if isinstance(group, str):
        assert read_recorder(found).counts == {}


def test_rank_without_collectives_is_behind() -> None:
    """The rank's counters are -1."""
    found = read_recorder({**recorder(-1, -1), "world_size": 4.0})
    assert (found.world_size, found.counts) == (4, {0: Counts(-1, -1)})
    assert found.waiting == ()


def test_listing_contains_every_thread_once() -> None:
    ranks = [rank(0, *WAIT), rank(1, TRAIN, LOADER, QUEUE), rank(2, *WAIT)]
    text = listing(folded_of(*ranks), ranks, "sft")
    assert re.findall(r"^=== (ranks? [\d, ]+) ", text, re.MULTILINE) == ["rank 1", "ranks 0, 2"]
    assert text.count("distributed_c10d.py:3032 in all_reduce") == 1
    assert folded(folded_of(*ranks)).startswith("rank 1 (suspect): alive\n  /w/train.py:99 in main\n")
