"""Map library calls to activities by using a table of package functions and their activities.

Filenames are paths in an installed package, with ``/`` as the separator. The function names do not include
class names. The frames of a stack are searched from the innermost frame outward, and the first matching row
is used. Rows of a later tier are used only if no row of an earlier tier matches. For example, a thread that
waits for a queue might actually wait for data.
"""

from __future__ import annotations

import re

import msgspec

from stallwatch_rules.stacks.records import Frame, Kind
from stallwatch_rules.text.lazy import lazy


class Row(msgspec.Struct, frozen=True):
    """A row of the table: a pattern for stack frames, and the activity that these frames show."""

    kind: Kind
    file: str  #: regular expression that must match a part of the path
    function: str = ""  #: regular expression that must match the whole function name (empty for any function)
    label: str = ""  #: name to display; if empty, the name of the function is displayed
    tier: int = 0
    innermost: bool = False  #: True if the row matches only the innermost frame


_SAVES = r"_?(?:legacy_)?save(?!r).*|_zero3_consolidated_16bit_state_dict|async_save"
_JOINS = (
    r"init_process_group|new_(?:sub)?groups?.*|_new_group_with_tag|_store_based_barrier|_?\w*rendezvous.*"
)
_TRAINERS = r"/(?:transformers|accelerate|peft|trl|diffusers|lightning)/.*\.py$"
_GENERATORS = r"/(?:trl|deepspeed|transformers|peft)/.*\.py$"
# A user's folder can also be named verl, openrlhf, or swift. Therefore, only the subfolders of these packages
# are accepted outside an installation.
_PLAINLY_NAMED = (
    r"-packages/(?:verl|openrlhf|swift)/|/verl/(?:trainer|workers|experimental)/|/openrlhf/(?:trainer|models)/"
    r"|/swift/(?:llm|trainers|rlhf_trainers|plugin|pipelines|infer_engine)/"
)
# Callers of these functions are excluded. For example, _generate_and_score_completions of TRL and ms-swift
# also calls the reward functions.
_GENERATES = r"generate(?:_sequences|_samples)?|_generate(?!_and_|_loop$|_model_card).*"
# Files that call reward functions, in TRL 1.16 (trainer/grpo_trainer.py), ms-swift 3 (grpo_trainer.py), verl
# (trainer/ppo/reward.py), and OpenRLHF (utils/remote_rm_utils.py).
_REWARDED = (
    r"/(?:trl/(?:trainer|experimental)|verl/(?:trainer|workers|experimental)|openrlhf/(?:trainer|utils/remote_rm)"
    r"|swift/(?:llm|trainers|rlhf_trainers))[\w./-]*\.py$"
)
_REWARDS = (
    r"_?calculate_rewards.*|_?compute_(?:rewards?|scores?)(?:_.*)?|_?get_rewards?(?!_model)(?:_.*)?"
    r"|_?score_completions"
    r"|default_compute_score|remote_rm_fn.*|request_api_wrapper|_score_(?:loop|group)"
)
_CLIENTS = r"/(?:urllib3|requests|httpx|httpcore|aiohttp|botocore|grpc|huggingface_hub)/"
_THREADS = r"/python3[^/]*/(?:threading|queue|concurrent/futures/_base|selectors)\.py$|/multiprocessing/"
_LOADERS = r"torch/utils/data/|torchdata/|/webdataset/|/streaming/base/|nvidia/dali/"

#: Names of functions that evaluate a model, such as ``evaluate``, ``run_validation``, ``compute_metrics``,
#: ``on_validation_epoch_end``, ``estimate_loss`` (nanoGPT), ``evaluate_and_print_results`` (Megatron), and
#: ``compute_bleu``.
EVALUATES = lazy(
    r"(?:^|_)(?:eval|evals|evaluat\w*|valid|validat\w*|val|compute_metrics?|metrics?_fn|predict\w*|testing"
    r"|benchmark\w*|(?:sacre)?bleu|perplexity)(?:_|$)|^(?:estimate_loss|test|test_epoch|test_model|test_loop)$|[a-z](?:Eval|Valid)[a-z]*$"
)

#: Names of functions that save a model, such as ``save_checkpoint``, ``_maybe_save_model``, ``on_save``,
#: ``upload_checkpoint``, and ``SaveModel``. Such a function can continue long after its last call to a
#: library.
SAVES = lazy(
    r"^_*(?:(?:maybe|async|do|on)_)?save(?:_|$)|^[sS]ave[A-Z]"
    r"|^_*(?:write|dump|store|export|upload|push|copy|sync)_(?:\w+_)?(?:checkpoints?|ckpts?)(?:_|$)"
)

TIERS = 3
ROWS: tuple[Row, ...] = (
    Row(
        "debugger",
        r"/(?:pdb|bdb|code)\.py$|/(?:ipdb|pudb|debugpy)/|/IPython/(?:core/debugger|terminal)",
        label="debugger",
    ),
    Row("joining", r"torch/distributed/rendezvous\.py$", _JOINS, "init_process_group"),
    Row("joining", r"torch/distributed/(?:c10d_logger|distributed_c10d)\.py$", _JOINS),
    Row("joining", r"deepspeed/comm/", r"init_distributed|init_process_group|new_group"),
    Row("collective", r"torch/distributed/distributed_c10d\.py$", r"(?!_)(?!wrapper).*"),
    Row("collective", r"torch/distributed/(?:_functional_collectives|_symmetric_memory|nn/functional)"),
    Row("collective", r"deepspeed/(?:comm|runtime/comm)/", r"(?!_|log_wrapper|wrapper).*"),
    Row("collective", r"/(?:deepspeed|megatron|torch/distributed|torch_npu)/.*\.py$", r"wait"),
    # Transfers between pipeline stages: Megatron-core (pipeline_parallel/p2p_communication.py) and torch
    # 2.13.
    Row("collective", r"/megatron/.*/p2p_communication\.py$", r"(?:send|recv)_\w+"),
    Row("collective", r"torch/distributed/pipelining/schedules\.py$", r"_wait_batch_p2p", "recv"),
    Row("lock", r"/filelock/|/fasteners/|/portalocker/", r".*(?:acquire|lock|__enter__).*", "file lock"),
    Row("data", r"torch/utils/data/dataloader\.py$", label="DataLoader.__next__"),
    Row("data", _LOADERS, label="data loading"),
    Row("data", r"-packages/datasets/", label="datasets"),
    Row("save", r"torch/serialization\.py$", r"_?(?:legacy_)?save", "torch.save"),
    Row("save", r"/safetensors/", r"save.*", "safetensors.save"),
    Row("save", r"torch/distributed/checkpoint/", r".*(?:save|write|plan).*", "checkpoint save"),
    Row("save", r"deepspeed/runtime/.*\.py$", _SAVES),
    Row("save", _TRAINERS, r"_?save_.*|_?save"),
    Row("load", r"torch/serialization\.py$", r"_?(?:legacy_)?load", "torch.load"),
    Row("load", r"/(?:transformers|diffusers|peft)/.*\.py$", r"from_pretrained|load_state_dict|_load_.*"),
    Row("load", r"deepspeed/runtime/.*\.py$", r"_?load_.*checkpoint.*"),
    Row("reward", _REWARDED, _REWARDS),
    Row("reward", r"/verl/.*/(?:reward_manager|reward_score|reward_loop)/"),
    Row("code", r"/trl/.*\.py$", r"_tool_(?:call_)?loop"),
    Row("rollout", r"/transformers/generation/|/vllm/|/sglang/", label="generate"),
    Row("rollout", _GENERATORS, _GENERATES, "generate"),
    Row("rollout", _PLAINLY_NAMED, _GENERATES, "generate"),
    Row(
        "compile",
        # compile_wrapper (torch 2.13, _dynamo/eval_frame.py) is on each stack of compiled code.
        r"torch/_inductor/|torch/_dynamo/|/triton/(?:compiler|runtime)/",
        r"(?!compile_wrapper$|is_compiling$).*compil.*",
        "compilation",
    ),
    Row("compile", r"torch/utils/cpp_extension\.py$|deepspeed/ops/op_builder/", label="compilation"),
    # A notebook kernel either runs a cell or waits for a cell.
    Row("code", r"/IPython/core/interactiveshell\.py$", r"run_code", tier=1),
    Row("debugger", r"/ipykernel/kernelapp\.py$", label="idle notebook kernel", tier=1),
    Row("network", _CLIENTS, tier=1),
    Row("network", r"/python3[^/]*/(?:socket|ssl|http/client|urllib/request)\.py$", tier=1),
    Row("process", r"/python3[^/]*/subprocess\.py$|/multiprocessing/popen_", tier=1),
    # A process that calls Ray actors waits for them (Ray 2.60, _private/worker.py). Its own call can show a
    # more specific activity.
    Row("collective", r"/ray/_private/worker\.py$", r"get", "ray.get", tier=2),
    Row("collective", r"/ray/_private/worker\.py$", r"wait", "ray.wait", tier=2),
    # An idle Ray actor waits in its main loop.
    Row("collective", r"/ray/_private/worker\.py$", r"main_loop", "ray.main_loop", tier=2, innermost=True),
    Row("thread", _THREADS, tier=2),
)

# Frames that are on every stack, or that only forward a call.
_PASSING = lazy(r"torch/(?:utils/_contextlib|distributed/c10d_logger|utils/_device)\.py$")
_LIBRARY = lazy(r"/(?:site-packages|dist-packages)/|/lib(?:64)?/python3|^<|/stallwatch_exporter/|^…")


def is_library(frame: Frame) -> bool:
    """Return whether a frame is in installed code, not in the user's code."""
    return bool(_LIBRARY.search(frame.file.replace("\\", "/")))


def kind_of(frame: Frame, tier: int = 0, *, innermost: bool = False) -> tuple[Kind, str] | None:
    """Return the kind and the label of the activity that a frame shows, or ``None`` if no row matches."""
    path = "/" + frame.file.replace("\\", "/").lstrip("/")
    if _PASSING.search(path):
        return None
    function = frame.function.rpartition(".")[2]
    for row in ROWS:
        if row.tier != tier or (row.innermost and not innermost) or not re.search(row.file, path):
            continue
        if not row.function or re.fullmatch(row.function, function):
            return row.kind, row.label or function
    return None
