"""Fuzz one parser with libFuzzer (through atheris), which keeps the inputs that reach new code."""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType

import click

from fuzzing.running import make
from fuzzing.targets import Target, wrong

_SAMPLES = 200  # number of samples in the initial corpus


def follow(targets: Sequence[Target], inputs: int, seed: int) -> None:
    """Fuzz a parser until an input fails. Write this input to a file and print the name of the file."""
    try:
        import atheris
    except ImportError:
        raise click.ClickException("atheris is not installed; run pip install atheris") from None
    if len(targets) != 1:
        raise click.ClickException("libFuzzer tests one parser at a time; use --only to select the parser")
    target = targets[0]

    def try_input(data: bytes) -> None:
        if (problem := wrong(target, data)) is not None:
            raise AssertionError(problem)

    folder = Path(tempfile.mkdtemp(prefix="stallwatch-fuzz-"))
    for number in range(_SAMPLES):
        (folder / str(number)).write_bytes(make(target, seed, number))
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and (function.__module__ or "").startswith("stallwatch_"):
            atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", "-max_len=4096", str(folder)], try_input)
    atheris.Fuzz()
