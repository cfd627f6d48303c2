"""Expected result of each attempt by version. If DeepSpeed changed, one row ends and another begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from watched import Seen

from .attempts import Attempt
from .stacks import Stack


@dataclass(frozen=True)
class Expect:
    """One row of expectations; a field that is not set must be empty in the result."""

    attempt: str
    versions: str = ""  #: versions of DeepSpeed
    steps: int | None = None  #: steps that the probe counts on rank 0
    raises: str = ""  #: exception in both the log and the probe's event
    messages: bool = False  #: True if DeepSpeed prints its trace-cache messages
    mismatch: int = 0
    short: int = 0
    external: int = 0
    early: str = ""  #: rule of which the probe warns while the run continues
    verdict: str = "failed"
    primary: str | None = None


_EVAL_MODE = "AssertionError: backward pass is invalid for module in evaluation mode"
_NO_MODEL = "AssertionError: deepspeed.initialize requires a model"
_SUM = "RuntimeError: Function SumBackward0 returned an invalid gradient at index 0 - got [0]"
_REDUCED = "RuntimeError: 0 != 12480 Cannot reduce scatter gradients whose size is not same as the params"
_UNWRAPPED = "object has no attribute 'zero_gather_16bit_weights_on_model_save'"
_RENAMED = "AttributeError: 'DeepSpeedZeRoOffload' object has no attribute '_register_hooks_recursively'"
_TIMEOUT = "Timed out waiting 5000ms"
_WELL = {"verdict": "healthy"}


def _failure(rule: str, raises: str) -> dict[str, str]:
    """Return the expectations for a failure of which the probe also warns."""
    return {"early": rule, "raises": raises, "primary": rule}


EXPECTED: tuple[Expect, ...] = (
    # 0.15.4 removed the assertion: since then, only the probe detects the failure.
    Expect("eval-mode", "<0.15.4", 3, raises=_EVAL_MODE, primary="zero3-backward-in-eval-mode"),
    Expect(
        "eval-mode",
        ">=0.15.4",
        6,
        early="zero3-backward-in-eval-mode",
        verdict="degraded",
        primary="zero3-backward-in-eval-mode",
    ),
    Expect("model-none", **_failure("deepspeed-initialize-model-none", _NO_MODEL)),
    # Since 0.13, TRL checks for a reference model.
    Expect("online-dpo", "<0.19", **_failure("deepspeed-initialize-model-none", _NO_MODEL)),
    Expect("online-dpo", ">=0.19", 6, **_WELL),
    Expect("dummy-loss", **_failure("zero3-dummy-loss-invalid-gradient", _SUM)),
    Expect("dummy-loss-unused", "<0.16", **_failure("zero3-dummy-loss-invalid-gradient", _SUM)),
    Expect("dummy-loss-unused", ">=0.16", **_failure("zero3-dummy-loss-invalid-gradient", _REDUCED)),
    Expect("save-unwrapped", "", 3, **_failure("zero3-save-unwrapped-model", _UNWRAPPED)),
    Expect("ppo", "", 1, **_failure("zero3-save-unwrapped-model", _UNWRAPPED)),
    # Silent by default since 0.16.4; new hooks count as an invalidation since 0.19.2, without a message.
    Expect("trace", "<0.16.4", 16, messages=True, mismatch=1, short=1, **_WELL),
    Expect("trace", ">=0.16.4,<0.19.2", 16, mismatch=1, short=1, **_WELL),
    Expect("trace", ">=0.19.2", 16, mismatch=1, short=1, external=1, **_WELL),
    Expect("trace-asked", "<0.19.2", 16, messages=True, mismatch=1, short=1, **_WELL),
    Expect("trace-asked", ">=0.19.2", 16, messages=True, mismatch=1, short=1, external=1, **_WELL),
    # Parameters prefetched for the old order are still on their way: an error in 0.14.5, a wait in 0.15.3.
    Expect(
        "stall",
        "<0.15",
        5,
        "RuntimeError: still have inflight params",
        messages=True,
        primary="zero3-inflight-params",
    ),
    Expect(
        "stall", ">=0.15", 9, _TIMEOUT, messages=True, mismatch=5, primary="zero3-trace-cache-invalidated"
    ),
    Expect("sft", "", 8, **_WELL),
    Expect("dpo", "", 8, **_WELL),
    # TRL removes the hooks to generate while the trace is open: one invalidation a step.
    Expect("grpo", "<0.16.4", 8, messages=True, short=8, **_WELL),
    # 0.16.4 renamed the method by which TRL 0.14 installs the hooks again.
    Expect("grpo", "==0.16.4", raises=_RENAMED, primary="trl-offload-hooks-renamed"),
    Expect("grpo", ">=0.17,<0.19.2", 8, short=8, **_WELL),
    Expect("grpo", ">=0.19.2", 8, external=8, **_WELL),
)


def row_of(stack: Stack, attempt: Attempt) -> Expect:
    """Return the one row that applies. Raises `ValueError` if there is none, or more than one."""
    rows = [
        row
        for row in EXPECTED
        if row.attempt == attempt.name and SpecifierSet(row.versions).contains(stack.version)
    ]
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows expect something of {attempt.name} on {stack.name}")
    return rows[0]


def differences(stack: Stack, attempt: Attempt, seen: Seen) -> Iterator[str]:
    """Yield the differences between the result and the table."""
    row = row_of(stack, attempt)
    yield from _unlike("DeepSpeed's version", stack.deepspeed, seen.versions.get("deepspeed"))
    yield from _unlike("faults inside the probe", 0, seen.faults)
    yield from _unlike("exit code", 1 if row.verdict in ("failed", "unknown-failure") else 0, seen.exit_code)
    yield from _unlike("verdict", row.verdict, seen.verdict)
    yield from _unlike("primary cause", row.primary, seen.primary)
    yield from _unlike("steps", row.steps, seen.steps.get("0"))
    yield from _unlike("trace-cache messages printed", row.messages, seen.messages > 0)
    for kind in ("mismatch", "short", "external"):
        yield from _unlike(f"invalidations ({kind})", getattr(row, kind), seen.invalidations.get(kind, 0))
    yield from _unlike("early warnings", [row.early] if row.early else [], seen.early)
    for where, texts in (("log", seen.raised), ("probe", seen.exceptions)):
        if not row.raises and texts:
            yield f"the {where} tells of exceptions: {texts}"
        elif row.raises and not any(row.raises in text for text in texts):
            yield f"the {where} does not tell of {row.raises!r} but of {texts}"


def _unlike(what: str, expected: object, seen: object) -> Iterator[str]:
    if expected != seen:
        yield f"{what}: expected {expected}, seen {seen}"
