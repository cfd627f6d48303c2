"""Reproducible failures: the program, the message that it must print, and the expected diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Layout = Literal["stallwatch", "torchrun"]


@dataclass(frozen=True)
class Scenario:
    """One reproduction, with its recording in ``tests/recordings/<name>/``."""

    name: str
    program: str
    options: tuple[str, ...] = ()
    message: str = ""  #: message of a rank at the failure
    exit_code: int = 1
    verdict: str = "failed"
    primary: str | None = None
    lines: str | None = None  #: primary cause by the lines alone, if the recorded stacks show another
    rank: int | None = None  #: rank that the diagnosis must name, if one is to blame
    layout: Layout = "torchrun"  #: torchrun's files per rank, or the copies of ``stallwatch run``
    deepspeed: str | None = None  #: old version that alone shows the failure; ``None`` for the installed one
    needs: tuple[str, ...] = ("torch", "deepspeed")
    slow: bool = False  #: takes minutes, so tests do not run it

    @property
    def expected(self) -> dict[str, str | int | None]:
        """The diagnosis of the recording."""
        known = {"rank": self.rank, "lines": self.lines}
        more = {name: value for name, value in known.items() if value is not None}
        return {"verdict": self.verdict, "primary": self.primary, **more}

    def command(self, log_dir: str | None = None) -> list[str]:
        """Return the launch, whose ranks are separated by prefix or, with `log_dir`, by file."""
        apart = ["--tee", "3"] if log_dir is None else ["--redirects", "3", "--log-dir", log_dir]
        return ["torchrun", "--nproc-per-node", "2", *apart, self.program, *self.options]


SCENARIOS = (
    Scenario(
        "zero3-stall",
        "zero3_stall.py",
        message="Invalidate trace cache @ step",
        primary="gloo-collective-timeout",
        lines="zero3-trace-cache-invalidated",
        rank=1,
        layout="stallwatch",
        slow=True,
    ),
    Scenario(
        "deepspeed-initialize-model-none",
        "initialize_model_none.py",
        message="AssertionError: deepspeed.initialize requires a model",
        primary="deepspeed-initialize-model-none",
    ),
    Scenario(
        "zero3-dummy-loss",
        "dummy_loss.py",
        message="Function SumBackward0 returned an invalid gradient at index 0 - got [0] but expected shape "
        "compatible with [12480]",
        primary="zero3-dummy-loss-invalid-gradient",
    ),
    Scenario(
        "zero3-dummy-loss-unused-module",
        "dummy_loss.py",
        ("--unused",),
        message="0 != 12480 Cannot reduce scatter gradients whose size is not same as the params",
        primary="zero3-dummy-loss-invalid-gradient",
    ),
    Scenario(
        "zero3-save-unwrapped-model",
        "save_unwrapped_model.py",
        message="object has no attribute 'zero_gather_16bit_weights_on_model_save'",
        primary="zero3-save-unwrapped-model",
        needs=("torch", "deepspeed", "accelerate", "transformers"),
    ),
    Scenario(
        "zero3-backward-in-eval-mode",
        "backward_in_eval_mode.py",
        message="AssertionError: backward pass is invalid for module in evaluation mode",
        primary="zero3-backward-in-eval-mode",
        deepspeed="0.15.3",
    ),
    Scenario(
        "trace-cache-healthy",
        "healthy.py",
        ("--changing-order", "--pace", "0.1"),
        message="Invalidate trace cache @ step",
        exit_code=0,
        verdict="healthy",
        layout="stallwatch",
    ),
    Scenario("healthy", "healthy.py", exit_code=0, verdict="healthy", message="training finished"),
)
