"""The command line, called in this process and as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stallwatch.cli import cli

Stallwatch = Callable[..., Result]
Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stallwatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stallwatch:
    """Call the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, list(arguments), input=stdin, prog_name="stallwatch")

    return call


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Run the command line as a separate process in an empty folder."""

    def call(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        code = "from stallwatch.cli import main; main()"
        env = {**os.environ, **options.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            timeout=120,
            cwd=tmp_path,
            env=env,
            **{"text": True, **options},
        )

    return call
