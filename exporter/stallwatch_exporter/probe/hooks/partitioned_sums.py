"""Sums over ZeRO-3 parameters in the loss, made while the parameters were partitioned.

Such a parameter is an empty tensor outside of its module's forward pass. Autograd keeps the shape of what was
summed: the gradient of a sum over nothing is empty, and the backward pass fails at it. The graph is looked at
from the loss down, through arithmetic only and a bounded number of nodes; no number is read, no device asked.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from ..api import Probe
from ..places import place_of
from .warned import before_backward, warn

RULE = "zero3-dummy-loss-invalid-gradient"
MOST_NODES = 400
_ALWAYS = 3  # backward passes of an engine that are looked at; then the 4th, 8th, 16th …
_REDUCTIONS = ("Sum", "Mean")
#: Nodes that a term of a loss may lie under, by the beginnings of their names.
_ARITHMETIC = (
    *(
        "Sum",
        "Mean",
        "Add",
        "Sub",
        "Rsub",
        "Mul",
        "Div",
        "Neg",
        "Pow",
        "Abs",
        "Square",
        "Sqrt",
        "Clamp",
        "Where",
    ),
    *(
        "NanToNum",
        "Stack",
        "Cat",
        "View",
        "UnsafeView",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Expand",
        "Select",
    ),
    *("Clone", "Alias", "ToCopy", "PreBackwardFunction", "PostBackwardFunction"),
)


def install(_: Any, probe: Probe) -> None:
    """Watch the losses of DeepSpeed's engines; see ``deepspeed``."""
    before_backward.append(SumWatch(probe).begins)


class SumWatch:
    """Looks at some of the losses of each engine."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def begins(self, engine: Any, loss: Any, frame: FrameType) -> None:
        """A backward pass of `engine` begins at `loss`."""
        passes = self._passes[engine] = self._passes.get(engine, 0) + 1
        if passes > _ALWAYS and passes & (passes - 1):
            return
        parameter = summed_while_partitioned(getattr(loss, "grad_fn", None))
        if parameter is not None:
            name = _name(engine.module, parameter)
            warn(self._probe, RULE, "sum", name, parameter=name, place=place_of(frame.f_back))


def summed_while_partitioned(root: Any, most: int = MOST_NODES) -> Any:
    """The first parameter of ZeRO-3 below this node of a graph that was summed while it was empty."""
    waiting, seen = [(root, False)], set()
    while waiting and most > 0:
        node, empty = waiting.pop()
        if node is None or (node, empty) in seen:
            continue
        seen.add((node, empty))
        most -= 1
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            if empty and hasattr(node.variable, "ds_id"):
                return node.variable
            continue
        if not kind.startswith(_ARITHMETIC):
            continue
        if kind.startswith(_REDUCTIONS) and 0 in _summed_shape(node):
            empty = True
        waiting += [(child, empty) for child, _ in node.next_functions]
    return None


def _summed_shape(node: Any) -> tuple[int, ...]:
    """The shape of what a sum or a mean was taken of; torch 2 calls it the first, torch 1 the second."""
    for name in ("_saved_self_sym_sizes", "_saved_self_sizes"):
        shape = getattr(node, name, None)
        if shape is not None:
            return tuple(shape)
    return ()


def _name(model: Any, parameter: Any) -> str:
    """The parameter's path in the model."""
    for name, each in model.named_parameters():
        if each is parameter:
            return str(name)
    return f"parameter {parameter.ds_id}"
