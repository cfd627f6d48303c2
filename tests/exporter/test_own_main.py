"""Stallwatch's own processes; tests/pythons.sh runs this file with each Python of the training side."""

from __future__ import annotations

import subprocess
from pathlib import Path

from stallwatch_exporter.settings import own_main


def test_own_processes_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ("json", "msgspec", "stallwatch", "stallwatch_exporter"):
        (tmp_path / f"{name}.py").write_text("open('gotcha', 'w')")
    command = [*own_main("stallwatch.cli"), "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and not (tmp_path / "gotcha").exists()
