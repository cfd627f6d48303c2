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
from stallwatch_rules.checks.partitioned import Models
from stallwatch_rules.checks.remark import Remark, Words
from stallwatch_rules.checks.script import Call, Script, dotted

_COLLECTIVES = {
    *("barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "all_reduce", "reduce_scatter"),
    *("all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all"),
}
_WAITS_OF_ACCELERATE = {"wait_for_everyone", "save_state", "gather", "gather_for_metrics"}
_GROUP_FIRST = {"barrier", "monitored_barrier"}  #: the others take the group third or after
_RANKS = {"rank", "local_rank", "global_rank", "world_rank", "process_index", "local_process_index"}
_RANK_CALLS = {"get_rank", "get_global_rank", "get_local_rank"}
_FIRST = {
    *("is_main_process", "is_local_main_process", "is_world_process_zero", "is_local_process_zero"),
    *("is_rank_zero", "is_rank_0", "is_global_zero"),
}


def check_rank_guard(script: Script, config: DsConfig | None) -> Iterator[Remark]:
    """Collectives, and savers that hold some, below ``if rank == 0:`` alone.

    Nothing is said where the other branch, or any code for the other ranks, makes the same call: one rank
    first and then the others is a usual pattern. A collective of a group is the group's own affair.
    """
    models = Models(script)
    first: list[Call] = []
    others: set[str] = set()
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.If):
            continue
        guard = _guard(node.test)
        if guard is None:
            continue
        for alone, body in ((guard, node.body), (not guard, node.orelse)):
            calls = [call for call in _calls(body) if _needs_all(call, script, config, models)]
            if alone:
                first += calls
            else:
                others |= {call.last for call in calls}
    seen: set[int] = set()
    for call in first:
        if call.last not in others and id(call.node) not in seen:
            seen.add(id(call.node))
            yield _remark(script, call)


def _guard(test: ast.expr) -> bool | None:
    """``True`` where only the first rank passes, ``False`` where only the others do, else ``None``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        if _is_rank(test.operand):
            return True
        inner = _guard(test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = [_guard(one) for one in test.values]
        return next((one for one in parts if one is not None), None)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _is_rank(test.left):
        return _compared(test.ops[0], test.comparators[0])
    called = isinstance(test, ast.Call) and not test.args and not test.keywords
    named = test.func if called and isinstance(test, ast.Call) else test
    return True if _last(named) in _FIRST else None


def _compared(operator: ast.cmpop, to: ast.expr) -> bool | None:
    """``== 0`` and ``in (-1, 0)`` against ``!= 0``, ``> 0`` and ``not in [-1, 0]``."""
    try:
        value = ast.literal_eval(to)
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    if isinstance(operator, (ast.In, ast.NotIn)):
        if not isinstance(value, (tuple, list, set)) or any(one not in (-1, 0) for one in value):
            return None
        return isinstance(operator, ast.In)
    if value != 0 or isinstance(value, bool):
        return None
    if isinstance(operator, (ast.Eq, ast.LtE)):
        return True
    return False if isinstance(operator, (ast.NotEq, ast.Gt)) else None


def _is_rank(node: ast.expr) -> bool:
    """``rank``, ``args.local_rank``, ``dist.get_rank()`` of the world, ``int(os.environ["RANK"])``."""
    if isinstance(node, ast.Call):
        if dotted(node.func) == "int" and len(node.args) == 1:
            return any(
                isinstance(one, ast.Constant) and one.value in ("RANK", "LOCAL_RANK")
                for one in ast.walk(node.args[0])
            )
        return _last(node.func) in _RANK_CALLS and not node.args and not node.keywords
    return _last(node) in _RANKS


def _last(node: ast.expr) -> str:
    return dotted(node).rsplit(".", 1)[-1]


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


def _needs_all(call: Call, script: Script, config: DsConfig | None, models: Models) -> bool:
    owner = call.owner.rsplit(".", 1)[-1].lower()
    if call.last in _COLLECTIVES:
        of_torch = owner in ("dist", "distributed", "comm", "deepspeed")
        group = call.argument("group", 0 if call.last in _GROUP_FIRST else 2)
        return of_torch and not call.open and group is None
    if call.last in _WAITS_OF_ACCELERATE:
        return owner == "accelerator" and (call.last != "save_state" or config is not None)
    zero3 = config is not None and config.stage == 3
    if call.last == "save_model":
        return zero3 and "trainer" in owner and bool(script.imports & {"transformers", "trl"})
    if call.last in ("save_checkpoint", "save_16bit_model"):
        engine = any(script.initializations()) and "trainer" not in owner and bool(owner)
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
