"""Attacks on Stallwatch: each test is an attack that must be refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import STALLWATCH

EVE = 65533  #: the attacker: no account of this machine

GiveToEve = Callable[..., Path]
Attacked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def eves() -> GiveToEve:
    """Give files and folders to the attacker; the links themselves, not their targets."""
    if sys.platform == "win32" or os.geteuid() != 0:
        pytest.skip("only root can give a file to another account")

    def give(*paths: Path) -> Path:
        for path in paths:
            os.chown(path, EVE, EVE, follow_symlinks=False)
        return paths[0]

    return give


@pytest.fixture
def attacked() -> Attacked:
    """Run the command line in a process of its own, in the attacked folder."""

    def call(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **options.pop("env", {})}
        return subprocess.run(
            [*STALLWATCH, *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            **options,
        )

    return call
