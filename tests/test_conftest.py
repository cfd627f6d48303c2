"""The guard against silent skips must itself be able to fail a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SKIPPING = "import pytest\n\ndef test_a():\n    pytest.skip('because')\n\ndef test_b():\n    assert True\n"


@pytest.mark.parametrize(("ci", "allowed", "code"), [("", "", 0), ("1", "", 1), ("1", "test_a  known\n", 0)])
def test_an_unexpected_skip_fails_a_ci_run(
    tmp_path: Path, root: Path, ci: str, allowed: str, code: int
) -> None:
    (tmp_path / "conftest.py").write_text((root / "tests/conftest.py").read_text())
    (tmp_path / "allowed_skips.txt").write_text(allowed)
    (tmp_path / "test_it.py").write_text(SKIPPING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "CI": ci, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
