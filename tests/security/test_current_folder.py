"""Another account leaves modules, and files that libraries read, where the user starts Stallwatch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import free_port
from processes import STALLWATCH

Attacked = Callable[..., subprocess.CompletedProcess[str]]


def test_queried_python_does_not_import_from_the_current_folder(attacked: Attacked, tmp_path: Path) -> None:
    """``check --python`` starts another Python, which looks for no module where the user happens to be."""
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'gotcha')!r}, 'w')")
    (tmp_path / "ds_config.json").write_text("{}")
    done = attacked(tmp_path, "check", "--python", sys.executable, "ds_config.json")
    assert done.returncode in (0, 1) and not (tmp_path / "gotcha").exists()


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A dashboard that was started in a hostile folder; its address, and the folder."""
    pytest.importorskip("streamlit")
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("streamlit", "stallwatch_dashboard", "duckdb"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'gotcha')!r}, 'w')")
    (folder / ".streamlit").mkdir()
    (folder / ".streamlit" / "config.toml").write_text('[server]\nbaseUrlPath = "evil"\n')
    folder.chmod(0o777)
    port = free_port()
    starter = subprocess.Popen(
        [*STALLWATCH, "dashboard", "--port", str(port)],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert starter.stderr is not None
        line = starter.stderr.readline()
        assert f"dashboard on http://127.0.0.1:{port}" in line
        yield f"http://127.0.0.1:{port}", folder
    finally:
        starter.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            starter.wait(30)
        starter.kill()
        starter.communicate()


def test_module_in_the_current_folder_does_not_shadow_a_library(dashboard: tuple[str, Path]) -> None:
    """The dashboard's processes look for no module where the user happens to be."""
    url, folder = dashboard
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=60) as answer:
        assert answer.status == 200
    assert not (folder / "gotcha").exists()


def test_planted_streamlit_configuration_is_ignored(dashboard: tuple[str, Path]) -> None:
    """``.streamlit/config.toml`` of the current folder is not obeyed: the pages stay where they are."""
    url, _ = dashboard
    with urllib.request.urlopen(f"{url}/_stcore/health", timeout=60) as answer:
        assert answer.read() == b"ok"
