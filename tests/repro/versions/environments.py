"""Virtual environments for the stacks, made once by uv, which links shared files."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from .stacks import Stack

# Old DeepSpeed is built from source and imports torch and these packages, which a build without isolation
# finds.
_TO_BUILD = ("numpy", "setuptools", "wheel", "ninja", "packaging", "py-cpuinfo", "psutil", "pydantic")
_STAMP = ".made-of"


def environment_of(stack: Stack, folder: Path, torch: str) -> str:
    """Return the Python of the stack's environment; create it if it is missing or has other pins.

    `torch` holds pip's arguments, such as ``torch==2.13.0 --index-url URL``. Raises
    `subprocess.CalledProcessError` with uv's output if the installation fails; an incomplete environment is
    made again the next time.
    """
    place = folder / stack.name
    python, stamp = place / "bin" / "python", place / _STAMP
    made_of = "\n".join([torch, *stack.pins()])
    if stamp.exists() and stamp.read_text() == made_of:
        return str(python)
    _uv("venv", "--clear", "--python", sys.executable, str(place))
    install = ("pip", "install", "--python", str(python))
    _uv(*install, *shlex.split(torch))
    _uv(*install, *_TO_BUILD)
    _uv(*install, "--no-build-isolation", *stack.pins())
    stamp.write_text(made_of)
    return str(python)


def _uv(*arguments: str) -> None:
    """Run uv as a module of this Python, with pip's settings for other indexes."""
    env = {**os.environ, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu", "UV_HTTP_TIMEOUT": "180"}
    for ours, pips in (("UV_FIND_LINKS", "PIP_FIND_LINKS"), ("SSL_CERT_FILE", "PIP_CERT")):
        if pips in env:
            env.setdefault(ours, env[pips])
    subprocess.run(
        [sys.executable, "-m", "uv", "--quiet", *arguments],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
