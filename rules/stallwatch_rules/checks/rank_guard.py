"""Calls that all ranks must make, made by one of them: the others never come, and that one waits for good.

Run with two ranks under gloo (torch 2.13.0, deepspeed 0.19.8): ``barrier`` and, at every ZeRO stage,
``save_checkpoint`` of rank 0 alone end in a timeout; ``save_16bit_model`` does at stage 3, where it gathers
the weights. So does the Trainer's ``save_model``, by accelerate's ``get_state_dict`` (read in transformers
5.23.0 and accelerate 1.15.0).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stallwatch_rules.checks.dsconfig import DsConfig
from stallwatch_rules.checks.first_rank import FirstRank
from stallwatch_rules.checks.kinds import Kinds, kinds_of
from stallwatch_rules.checks.partitioned import Models, models_of
from stallwatch_rules.checks.remark import Remark, Words
from stallwatch_rules.checks.script import Call, Script, dotted

_COLLECTIVES = {
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "all_reduce", "reduce_scatter"),
    *("all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all"),
}
_WAITS_OF_ACCELERATE = {"wait_for_everyone", "save_state", "gather", "gather_for_metrics"}
_TORCH = ("dist", "distributed", "comm", "deepspeed")  #: modules that these are functions of
_GROUP_FIRST = {"barrier", "monitored_barrier"}  #: the others take the group third or after


def check_rank_guard(script: Script, config: DsConfig | None) -> Iterator[Remark]:
    """Collectives, and savers that hold some, below ``if rank == 0:`` alone.

    Nothing is said where the other branch, or any code for the other ranks, makes the same call: one rank
    first and then the others is a usual pattern. A collective of a group is the group's own affair.
    """
    models, kinds, guards = models_of(script), kinds_of(script), FirstRank(script)
    first: list[Call] = []
    others: set[str] = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.If):
            continue
        guard = guards.passes(node.test)
        if guard is None:
            continue
        for alone, body in ((guard, node.body), (not guard, node.orelse)):
            calls = [call for call in _calls(body) if _needs_all(call, script, config, models, kinds)]
            if alone:
                first += calls
            else:
                others |= {call.last for call in calls}
    seen: set[int] = set()
    for call in first:
        if call.last not in others and id(call.node) not in seen:
            seen.add(id(call.node))
            yield _remark(script, call)


def _calls(body: list[ast.stmt]) -> Iterator[Call]:
    """The calls that this branch makes itself: not those of functions that it only defines."""
    inside: list[ast.AST] = list(body)
    while inside:
        node = inside.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Call):
            yield Call(dotted(node.func), node)
        inside += ast.iter_child_nodes(node)


def _needs_all(call: Call, script: Script, config: DsConfig | None, models: Models, kinds: Kinds) -> bool:
    owner, _, last = script.full(call.name).rpartition(".")
    if last in _COLLECTIVES and owner.rpartition(".")[2].lower() in _TORCH:
        group = call.argument("group", 0 if last in _GROUP_FIRST else 2)
        return not call.open and group is None
    kind = kinds.of_owner(call.node)
    if call.last in _WAITS_OF_ACCELERATE:
        return kind == "accelerator" and (call.last != "save_state" or config is not None)
    zero3 = config is not None and config.stage == 3
    if call.last == "save_model":
        return zero3 and kind == "trainer" and bool(script.imports & {"transformers", "trl"})
    if call.last in ("save_checkpoint", "save_16bit_model"):
        engine = any(script.initializations()) and kind not in ("trainer", "other") and bool(call.owner)
        return engine and (zero3 or call.last == "save_checkpoint")
    return models.needs_all(call, zero3=zero3)


def _remark(script: Script, call: Call) -> Remark:
    return Remark(
        "called-by-one-rank",
        "likely",
        Words(f"only one rank calls {call.name}()", f"只有一个 rank 调用 {call.name}()"),
        Words(
            "It needs all ranks: this one waits for the others until the collective times out.",
            "它需要所有 rank 参与：这个 rank 会一直等待其他 rank，直到集合通信超时。",
        ),
        Words("Call it on all ranks, outside of the condition.", "放到条件之外，在所有 rank 上调用。"),
        "nccl-collective-timeout",
        script.file,
        call.line,
    )
