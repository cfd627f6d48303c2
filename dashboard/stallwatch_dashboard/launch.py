"""Start the dashboard as a child process and clean up when it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import FrameType

from stallwatch_dashboard import theme
from stallwatch_dashboard.settings import DashboardSettings, own_address, to_environment
from stallwatch_exporter.notices import print_notice
from stallwatch_exporter.serving.authentication import problems
from stallwatch_exporter.settings import is_own_address, own_main

_START_SECONDS = 60.0
_END_SECONDS = 5.0


def serve(settings: DashboardSettings) -> int:
    """Serve the pages until SIGINT, SIGTERM, or SIGHUP. Return the exit code for the shell."""
    problem = _problem(settings)
    if problem:
        print_notice(problem)
        return 2
    for doubt in problems(settings.server):
        print_notice(doubt)
    if settings.port == 0:
        settings = replace(settings, port=_free_port(settings.host) or 0)
    with _child(settings) as child, _forwarded_signals(child) as end_signals:
        url = own_address(settings.host, settings.port)
        if not _answers(child, url):
            return _exit_code(child, end_signals) if end_signals else 1
        print_notice(f"dashboard on {url} (press Control+C to stop)")
        child.wait()
        return _exit_code(child, end_signals)


def streamlit_options(settings: DashboardSettings) -> dict[str, str]:
    """Return the Streamlit options as environment variables, which override the configuration files."""
    return {
        "STREAMLIT_SERVER_ADDRESS": settings.host,
        "STREAMLIT_SERVER_PORT": str(settings.port),
        # These two options prevent Streamlit from opening a browser and prompting for an email address.
        "STREAMLIT_SERVER_HEADLESS": "true",
        "STREAMLIT_SERVER_SHOW_EMAIL_PROMPT": "false",
        "STREAMLIT_SERVER_FILE_WATCHER_TYPE": "none",
        "STREAMLIT_SERVER_MAX_UPLOAD_SIZE": str(settings.max_upload_mb),
        # Without this option, Streamlit asks a public server for the address of this host.
        "STREAMLIT_BROWSER_SERVER_ADDRESS": "127.0.0.1",
        "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
        "STREAMLIT_CLIENT_TOOLBAR_MODE": "minimal",
        "STREAMLIT_CLIENT_SHOW_ERROR_DETAILS": "type",
        "STREAMLIT_CLIENT_SHOW_ERROR_LINKS": "false",
        "STREAMLIT_LOGGER_LEVEL": "warning",
        **theme.streamlit_options(),
    }


def _problem(settings: DashboardSettings) -> str | None:
    if find_spec("streamlit") is None:
        return (
            "the dashboard is not installed; with Python 3.11 or later, run"
            " pip install 'stallwatch[dashboard]'"
        )
    if problem := settings.login.problem(settings.address):
        return problem
    if settings.login.on and (find_spec("authlib") is None or find_spec("httpx") is None):
        return "login requires authlib and httpx; run pip install 'stallwatch[dashboard]'"
    if not settings.insecure and not settings.login.on and not is_own_address(settings.host):
        return (
            f"other hosts can reach {settings.host}, and the dashboard has no login;"
            " keep 127.0.0.1 and use ssh -L, set up [login], or pass --insecure"
        )
    if settings.port and _free_port(settings.host, settings.port) is None:
        return f"port {settings.port} on {settings.host} is in use; choose another with --port"
    return None


def _free_port(host: str, port: int = 0) -> int | None:
    """Return `port`, or ``None`` if it is in use. If `port` is 0, return a port that the system chooses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # `create_server` would accept an IPv6 port that another program uses on IPv4.
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _child(settings: DashboardSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server process in a separate session until the `with` block ends or this process ends."""
    child = subprocess.Popen(
        own_main("stallwatch_dashboard.server"),
        env={
            **os.environ,
            "PYTHONSAFEPATH": "1",  # prevents imports from the current folder in the server's child processes
            **streamlit_options(settings),
            **to_environment(settings),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # hides the greeting of Streamlit; warnings and errors go to stderr
        start_new_session=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
        _kill(child)
        child.wait()
        if child.stdin:
            child.stdin.close()


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill all processes in the child's process group, even if the child does not respond."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _forwarded_signals(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """While the `with` block runs, end the child on SIGINT, SIGTERM, or SIGHUP. Yield received signals."""
    came: list[int] = []
    last = threading.Timer(_END_SECONDS, _kill, (child,))
    last.daemon = True

    def forward(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        if len(came) == 1:
            last.start()

    try:
        before = {
            number: signal.signal(number, forward)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
    except ValueError:  # outside the main thread, signals cannot be handled
        yield came
        return
    try:
        yield came
    finally:
        last.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _answers(child: subprocess.Popen[bytes], url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _START_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), opener.open(f"{url}/_stcore/health", timeout=1) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.1)
    if child.poll() is None:
        print_notice(f"the dashboard did not start within {_START_SECONDS:.0f} s")
    return False


def _exit_code(child: subprocess.Popen[bytes], end_signals: list[int]) -> int:
    """Return the exit code for the shell: 0 after a signal, because a signal is the normal way to stop."""
    code = child.poll()
    return 0 if end_signals or code is None else (code if code >= 0 else 128 - code)
