"""Detect ZeRO-3 failures and slowdowns that DeepSpeed reports too late or not at all.

**Modules in evaluation mode that take part in a backward pass.** DeepSpeed 0.15.3 and earlier reject such
modules (an assertion in ``runtime/zero/parameter_offload.py``). DeepSpeed 0.15.4 and later report nothing,
and the model trains without its dropout. When a backward pass begins, the hook searches the model
for modules in evaluation mode. It searches at most once a second, and for at most a thousandth of the time.
If it finds such modules, it checks whether the backward pass reaches them. A backward pass never reaches a
teacher model that runs without gradients.

**Sums over partitioned parameters in the loss.** A partitioned parameter is an empty tensor outside its
module's forward pass. Autograd stores the shape of the summed tensor. Therefore, the gradient of an empty sum
is empty, and the backward pass fails at this gradient. The hook searches the graph of the loss, but only
through a limited number of arithmetic nodes. It reads no numbers and queries no device.

**``deepspeed.initialize`` without a model.** DeepSpeed 0.14 to 0.19 first leaves any ``zero.Init`` context
through ``zero.partition_parameters``, and then asserts that there is a model (``deepspeed/__init__.py``). The
hook reads local variables through ``f_locals``, which leaves a copy on the frame in Python 3.12 and earlier.
In ``initialize``, the local variables are the arguments, which the caller also keeps alive. The hook reads
outer frames only if the call is about to fail.

**Invalidations of the trace that records the order of modules.** The hook reports each invalidation with
its reason and modules. By default, DeepSpeed 0.16.4 and later do not report invalidations. If the cause is
outside the forward pass, these versions never report the invalidation.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..api import Probe
from ..noticing import notice_method, notice_module_attribute, stop_noticing
from .deepspeed import engines
from .reports import before_backward, place_of, quietly, warn

RULE_EVAL = "zero3-backward-in-eval-mode"
LOOK_SECONDS = 1.0
_SHARE = 1000  # maximum share of the time (1/1000) that is spent on checking modes
_MOST_WARNINGS = 8
_TRAINS_ON_SINCE = (0, 15, 4)
RULE_SUMS = "zero3-dummy-loss-invalid-gradient"
MOST_NODES = 400
_ALWAYS = 3  # examine this many of an engine's first backward passes, and then the 4th, 8th, 16th, …
_REDUCTIONS = ("Sum", "Mean")
#: Name prefixes of the arithmetic nodes that combine the terms of a loss in its graph.
_ARITHMETIC = (
    *("Sum", "Mean", "Add", "Sub", "Rsub", "Mul", "Div", "Neg", "Pow", "Abs", "Square", "Sqrt", "Clamp"),
    *("Where", "NanToNum", "Stack", "Cat", "View", "UnsafeView", "Reshape", "Unsqueeze", "Squeeze", "Expand"),
    *("Select", "Clone", "Alias", "ToCopy", "PreBackwardFunction", "PostBackwardFunction"),
)
RULE_MODEL = "deepspeed-initialize-model-none"
_MODELS = ("model", "ref_model", "ref_policy", "reward_model", "value_model", "policy_model", "teacher_model")
_MOST_FRAMES = 12
_MOST_NAMED = 32  # maximum number of module pairs for which names are looked up in the model
_PRIVATE = "_PartitionedParameterCoordinator__"


def watch_backward(module: Any, probe: Probe) -> None:
    """Watch ``parameter_offload``, which runs the backward pass of each module."""
    cls, name = module.DeepSpeedZeRoOffload, "pre_sub_module_backward_function"

    def arm(on: bool) -> None:
        if on:
            notice_method(cls, name, watch.reached, probe.failed)
        else:
            stop_noticing(cls, name)

    watch = EvalWatch(probe, arm)
    before_backward.extend(quietly(call, probe) for call in (watch.begins, SumWatch(probe).begins))


class EvalWatch:
    """Observer of the modes of the modules in each engine.

    `arm` starts and stops the observation of a backward pass, which is needed only while modules are in
    evaluation mode. `refused` specifies whether DeepSpeed rejects such modules. If `refused` is ``None``,
    the version of DeepSpeed determines the value.
    """

    def __init__(
        self,
        probe: Probe,
        arm: Callable[[bool], None],
        *,
        refused: bool | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._probe = probe
        self._arm = arm
        self._refused = refused
        self._clock = clock
        self._due: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._suspects: dict[Any, str] = {}  # paths of modules in evaluation mode when the pass began
        self._place = ""
        self._armed = False
        self._reported = 0

    def begins(self, engine: Any, _: Any, frame: FrameType) -> None:
        """Handle the start of a backward pass. If a check is due, check the modes of the engine's modules."""
        if self._armed:
            self._armed, self._suspects = False, {}
            self._arm(False)
        trains = bool(engine.module.training)
        # `left` means that the whole model was switched to evaluation mode after the previous backward pass.
        left = not trains and self._trains.get(engine, True)
        self._trains[engine] = trains
        now = self._clock()
        if self._reported >= _MOST_WARNINGS or (now < self._due.get(engine, now) and not left):
            return
        if self._refused is None:  # the version is not known while DeepSpeed is being imported
            self._refused = _version() < _TRAINS_ON_SINCE
        self._suspects = in_evaluation(engine.module, strict=self._refused)
        took = self._clock() - now
        self._due[engine] = now + max(LOOK_SECONDS, _SHARE * took)
        if self._suspects:
            self._place = place_of(frame.f_back)
            self._armed = True
            self._arm(True)

    def reached(self, _: Any, frame: FrameType) -> None:
        """Handle a module that the backward pass reached, which is the caller's ``sub_module``."""
        if not self._suspects:
            return
        module: Any = frame.f_locals.get("sub_module")
        name = self._suspects.get(module)
        if name is None or module.training:
            return
        others, self._suspects = len(self._suspects) - 1, {}
        self._reported += 1
        seen = "eval-refused" if self._refused else "eval-silent"
        kind = type(module).__name__
        path = f"{name or '(the model)'} ({kind})"
        warn(self._probe, RULE_EVAL, seen, name, module=path, others=others, place=self._place)


def in_evaluation(model: Any, *, strict: bool) -> dict[Any, str]:
    """Return a model's modules that are in evaluation mode, and the paths of these modules.

    If `strict` is False, return only modules that have trainable parameters themselves and no running
    statistics. The reason is that programs intentionally keep frozen parts and batch normalization in
    evaluation mode.
    """
    found = {}
    for name, module in model.named_modules():
        if not module.training and (strict or (_trainable(module) and not _keeps_statistics(module))):
            found[module] = name
    return found


def _trainable(module: Any) -> bool:
    parameters = module._parameters.values()
    return any(parameter is not None and parameter.requires_grad for parameter in parameters)


def _keeps_statistics(module: Any) -> bool:
    return module._buffers.get("running_mean") is not None


def _version() -> tuple[int, ...]:
    """Return the version of DeepSpeed as numbers, or a very high version if it cannot be read."""
    text = str(getattr(sys.modules.get("deepspeed"), "__version__", ""))
    parts = text.split("+")[0].split(".")[:3]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else (999,)


class SumWatch:
    """Observer that checks a sample of each engine's losses for sums over partitioned parameters."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def begins(self, engine: Any, loss: Any, frame: FrameType) -> None:
        """Handle the start of a backward pass that `engine` runs from `loss`."""
        passes = self._passes[engine] = self._passes.get(engine, 0) + 1
        if passes > _ALWAYS and passes & (passes - 1):
            return
        parameter = summed_while_partitioned(getattr(loss, "grad_fn", None))
        if parameter is not None:
            name = _parameter_name(engine.module, parameter)
            warn(self._probe, RULE_SUMS, "sum", name, parameter=name, place=place_of(frame.f_back))


def summed_while_partitioned(root: Any, most: int = MOST_NODES) -> Any:
    """Return the first ZeRO-3 parameter in the graph of `root` that was empty when summed, or ``None``."""
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
    """Return the operand shape of a sum or mean, from an attribute that torch 2 or torch 1 sets."""
    for name in ("_saved_self_sym_sizes", "_saved_self_sizes"):
        shape = getattr(node, name, None)
        if shape is not None:
            return tuple(shape)
    return ()


def _parameter_name(model: Any, parameter: Any) -> str:
    """Return the parameter's path in the model, or its DeepSpeed ID."""
    for name, each in model.named_parameters():
        if each is parameter:
            return str(name)
    return f"parameter {parameter.ds_id}"


def watch_initialize(module: Any, probe: Probe) -> None:
    """Watch ``partition_parameters``, which ``deepspeed.initialize`` looks up before it requires a model."""
    package, _, name = module.__name__.rpartition(".")

    def looked_up(_: Any, frame: FrameType) -> None:
        if frame.f_code.co_name != "initialize":
            return
        given = frame.f_locals
        if "model" in given and given["model"] is None:
            place = place_of(frame.f_back)
            trainer, missing = trainer_without_model(frame.f_back)
            seen = "no-model-of" if missing else "no-model"
            warn(probe, RULE_MODEL, seen, place, place=place, trainer=trainer, missing=missing)

    notice_module_attribute(sys.modules[package], name, looked_up, probe.failed)


def trainer_without_model(frame: FrameType | None) -> tuple[str, str]:
    """Return the class of the trainer that is being created, and the names of its models that are ``None``.

    If no trainer is being created, both strings are empty.
    """
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        trainer = frame.f_locals.get("self")
        kind = type(trainer).__name__
        if kind.endswith("Trainer"):
            fields = vars(trainer)
            return kind, ", ".join(name for name in _MODELS if name in fields and fields[name] is None)
        frame = frame.f_back
    return "", ""


def watch_trace(module: Any, probe: Probe) -> None:
    """Count and describe the trace-cache invalidations of ``partitioned_param_coordinator``."""
    named: set[tuple[Any, ...]] = set()

    def invalidated(coordinator: Any, frame: FrameType) -> None:
        how, about, modules = _why(coordinator, frame)
        probe.add(f"invalidations_{how}")
        key = (how, *sorted(about.items()))
        if key not in named and len(named) < _MOST_NAMED:
            named.add(key)
            names = {role: name_of(each) for role, each in modules.items()}
            probe.event("trace-cache", None, how=how, **about, **names)

    cls = module.PartitionedParameterCoordinator
    notice_method(cls, "_invalidate_trace", invalidated, probe.failed)
    for how in ("mismatch", "short", "external"):
        probe.add(f"invalidations_{how}", 0.0)  # the count is zero so far and would otherwise be unknown


def _why(coordinator: Any, frame: FrameType) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the reason for an invalidation, its details, and the modules that are involved.

    The reason is ``mismatch`` if a different module was expected, and ``short`` if more modules run than
    the trace contains. It is ``external`` if the cause is outside the forward pass.
    """
    if frame.f_code.co_name != "trace_prologue":
        return "external", {"called_by": frame.f_code.co_name}, {}
    got = frame.f_locals.get("sub_module")
    step = getattr(coordinator, _PRIVATE + "step_id", 0)
    order = getattr(coordinator, _PRIVATE + "submodule_order", ())
    if step >= len(order):
        return "short", {"got": _id(got), "recorded": len(order)}, {"got_name": got}
    expected = order[step]
    about = {"got": _id(got), "expected": _id(expected)}
    return "mismatch", about, {"got_name": got, "expected_name": expected}


def _id(module: Any) -> int:
    """Return the number that DeepSpeed assigned to a module, or -1 if the module has no number.

    The attribute with this number is ``ds_id``, or ``id`` in versions earlier than 0.17.
    """
    number = getattr(module, "ds_id", getattr(module, "id", -1))
    return number if isinstance(number, int) else -1


def name_of(module: Any) -> str:
    """Return the module's path in the model, and the module's class."""
    kind = type(module).__name__
    for engine in engines():
        for name, each in engine.module.named_modules():
            if each is module:
                return f"{name or '(the model)'} ({kind})"
    return f"({kind})"
