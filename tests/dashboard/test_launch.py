"""Start and end of the real server: no process is left, and no secret is revealed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from ports import free_port
from processes import connections, runs

from stallwatch_dashboard.launch import serve, streamlit_options
from stallwatch_dashboard.settings import DashboardSettings

_STARTER = """
import sys
from pathlib import Path
from stallwatch_dashboard.launch import serve
from stallwatch_dashboard.settings import DashboardSettings
sys.exit(serve(DashboardSettings(home=Path(sys.argv[1]), port=int(sys.argv[2]))))
"""
WaitFor = Callable[..., None]


@pytest.fixture
def started(home: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, list[psutil.Process]]]:
    """Start the dashboard as the command line does; yield the process, its port and its child processes."""
    port = free_port()
    starter = subprocess.Popen([sys.executable, "-c", _STARTER, str(home), str(port)], stderr=subprocess.PIPE)
    family: list[psutil.Process] = []
    try:
        assert starter.stderr is not None
        line = starter.stderr.readline().decode()
        assert line == f"stallwatch: dashboard on http://127.0.0.1:{port} (press Control+C to stop)\n"
        family = psutil.Process(starter.pid).children(recursive=True)
        yield starter, port, family
    finally:
        starter.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        starter.communicate()  # a remaining process would hold standard error open


def test_dashboard_scrapes_without_a_viewer_and_ends_with_ctrl_c(
    started: tuple[subprocess.Popen[bytes], int, list[psutil.Process]], home: Path
) -> None:
    starter, port, family = started
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120) as answer:
        assert b"<title>" in answer.read()
    assert (home / "metrics.duckdb").exists()
    listening = [
        connection.laddr.ip
        for process in family
        for connection in connections(process)
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) == {"127.0.0.1"}
    starter.send_signal(signal.SIGINT)
    assert starter.wait(120) == 0
    assert not [process for process in family if runs(process)]


def test_server_ends_when_its_parent_is_killed(
    started: tuple[subprocess.Popen[bytes], int, list[psutil.Process]],
) -> None:
    starter, _, family = started
    assert family
    starter.kill()
    starter.wait()
    _, left = psutil.wait_procs(family, timeout=120)
    assert not left


def test_hanging_server_ends_with_ctrl_c(
    started: tuple[subprocess.Popen[bytes], int, list[psutil.Process]],
) -> None:
    starter, _, family = started
    for process in family:
        process.suspend()  # SIGTERM stays pending
    starter.send_signal(signal.SIGINT)
    assert starter.wait(120) == 0
    assert not [process for process in family if runs(process)]


def test_port_in_use_is_reported(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert serve(DashboardSettings(home=home, port=port)) == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in capfd.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_public_addresses_are_refused_without_login(
    host: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert serve(DashboardSettings(home=home, host=host)) == 2
    assert "no login" in capfd.readouterr().err


def test_streamlit_sends_no_usage_statistics(home: Path) -> None:
    options = streamlit_options(DashboardSettings(home=home, port=8599, max_upload_mb=7))
    assert options["STREAMLIT_BROWSER_GATHER_USAGE_STATS"] == "false"
    assert options["STREAMLIT_SERVER_ADDRESS"] == "127.0.0.1"
    assert options["STREAMLIT_SERVER_MAX_UPLOAD_SIZE"] == "7"
    assert options["STREAMLIT_THEME_DARK_PRIMARY_COLOR"].startswith("#")


def test_streamlit_supports_every_option(home: Path) -> None:
    """Streamlit ignores a misspelt environment variable without a message."""
    from streamlit import config

    known = {option.env_var for option in config.get_config_options().values()}
    found = set(streamlit_options(DashboardSettings(home=home)))
    if not any(name.startswith("STREAMLIT_THEME_DARK_") for name in known):  # an older Streamlit
        found = {name for name in found if "_THEME_LIGHT_" not in name and "_THEME_DARK_" not in name}
    assert found <= known


def test_printed_url_can_be_opened(home: Path) -> None:
    assert DashboardSettings(home=home).address == "http://127.0.0.1:8501"
    assert DashboardSettings(home=home, host="::1").address == "http://[::1]:8501"
    assert DashboardSettings(home=home, host="0.0.0.0").address == "http://127.0.0.1:8501"


def test_only_pages_import_streamlit() -> None:
    """The other modules can be tested, and started, without Streamlit."""
    program = (
        "import sys, pkgutil, importlib, stallwatch_dashboard as d\n"
        "skip = ('pages', 'app', 'entry')\n"
        "for m in pkgutil.walk_packages(d.__path__, d.__name__ + '.'):\n"
        "    if not any(part in m.name.split('.') for part in skip): importlib.import_module(m.name)\n"
        "sys.exit('streamlit' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ).returncode == 0
