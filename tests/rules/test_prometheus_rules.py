"""The recording and alerting rules, judged by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
    ),
]


@pytest.mark.parametrize(
    "arguments",
    [["check", "rules", "recording.yml", "alerting.yml"], ["test", "rules", "tests.yml"]],
    ids=["syntax", "fire and stay quiet"],
)
def test_promtool_accepts_the_rules(root: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=root / "rules/prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
