"""Implement ``stallwatch demo``: replay the recording of a real stall under ``stallwatch run``.

The demo starts the same processes that users run: the dashboard and ``stallwatch run``. Environment variables
set their state folder and their chat. Only the chat is specific to the demo.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from stallwatch.demo_chat import chat_endpoint
from stallwatch_exporter.notices import print_notice
from stallwatch_exporter.running.signals import handling
from stallwatch_exporter.runs.runfolder import read_info
from stallwatch_exporter.settings import own_main

RUN = "demo-zero3-stall"
_HERE = Path(__file__).resolve().parent
_REPOSITORY = _HERE.parent
_RECORDINGS = (_REPOSITORY / "tests/recordings/zero3-stall", _HERE / "recordings/zero3-stall")
_PROGRAM = _REPOSITORY / "tests/repro/zero3_stall.py"
_LIVE_OPTIONS = ("--steps", "160", "--hang-at", "80", "--timeout", "45")
_LIVE_FLOOR = 12.0
_FLOOR = 30.0  #: the default minimum stall threshold in seconds
_DASHBOARD_PATIENCE = 30.0

_STORY = {
    "training": "Steps advance and the loss falls, so the run is healthy. Soon, DeepSpeed prints “Invalidate "
    "trace cache” more and more often. As long as steps advance, these invalidations only cost time.",
    "stalled": "The steps have stopped. Stallwatch reports the stall above, on the page, and in the chat "
    "(“chat │”). The run itself prints nothing until its own timeout.",
    "failed": "The run is over; its ending and the diagnosis are above.",
    "finished": "The run is over; its ending and the diagnosis are above.",
}
_MARK = "_STALLWATCH_DEMO"  # environment variable that marks all child processes


class CannotStart(Exception):
    """Raised if the demo cannot start. The message contains the reason and the fix."""


def demo(recording: Path | None, speed: float, port: int, live: bool, exit_when_done: bool) -> int:
    """Show a stall from its first healthy step to its diagnosis. Return the exit code.

    `recording` is a run folder of ``stallwatch run`` (default: the packaged recording), `speed` is the speed
    factor of the replay, and `port` is the first port to try for the dashboard. If `live` is true, the demo
    trains instead of replaying.
    """
    show = _Screen()
    try:
        command, expected = _live_command() if live else _replay_command(recording, speed)
    except CannotStart as error:
        print_notice(str(error))
        return 2
    floor = _LIVE_FLOOR if live else _FLOOR / speed
    home = Path(tempfile.mkdtemp(prefix="stallwatch-demo-"))
    try:
        # Handle SIGTERM and a closed terminal in the same way as Control+C, so that all child processes end.
        with (
            handling(_leave, signal.SIGTERM, signal.SIGHUP),
            chat_endpoint(show.block) as chat,
            Children() as children,
        ):
            env = _environment(home, chat, floor)
            page = _start_dashboard(children, env, home, port, show)
            what = "A training run" if live else f"A recorded real run, {speed:g} times as fast"
            show.say(
                f"{what}: two ranks, DeepSpeed ZeRO-3. The run trains well, then rebuilds its trace cache "
                "more and more often, and finally one rank hangs.",
                f"For the demo, the minimum time before a stall is reported is {floor:g} s instead of "
                f"{_FLOOR:g} s: STALLWATCH_STALL_FLOOR_SECONDS={floor:g}",
                f"$ stallwatch run --name {RUN} -- {_short(command)}",
            )
            run = children.start([*_stallwatch(), "run", "--name", RUN, "--", *command], env)
            code = _watch(run, home / "runs" / RUN, show)
            if page and not exit_when_done:
                show.say(
                    f"The page {page} and the folder {home} with the copies of the output remain "
                    "available until you press Control+C."
                )
                threading.Event().wait()
            show.say(f"Deleting the folder {home} of this demo.")
            return 0 if expected is None or code == expected else 1
    except KeyboardInterrupt:
        show.say(f"Stopping all processes of this demo, and deleting its folder {home}.")
        return 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


class _Screen:
    """Prints complete blocks of text that the training's output cannot interrupt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def block(self, text: str) -> None:
        with self._lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def say(self, *paragraphs: str) -> None:
        prefix = f"demo │ {time.monotonic() - self._began:3.0f} s │ "
        width = shutil.get_terminal_size((110, 24)).columns - len(prefix)
        lines = [
            line
            for paragraph in paragraphs
            for line in textwrap.wrap(
                paragraph, max(width, 40), break_long_words=False, break_on_hyphens=False
            )
        ]
        self.block("\n".join(prefix + line for line in lines))


def _replay_command(recording: Path | None, speed: float) -> tuple[list[str], int | None]:
    """Return two values: the command line that replays a recording, and the expected exit code."""
    if not speed > 0:
        raise CannotStart(f"--speed must be greater than 0, not {speed:g}")
    folders = [recording] if recording else list(_RECORDINGS)
    folder = next((folder for folder in folders if (folder / "ranks").is_dir()), None)
    if folder is None:
        raise CannotStart(
            f"no recording in {folders[0]} (no folder “ranks”); record a run with stallwatch run -- COMMAND"
        )
    info = read_info(folder)
    expected = info.ending.exit_code if info and info.ending else None
    return [*_stallwatch(), "replay", str(folder), "--speed", f"{speed:g}"], expected


def _live_command() -> tuple[list[str], int | None]:
    if not _PROGRAM.exists():
        raise CannotStart(
            "--live requires tests/repro/zero3_stall.py; use it in a checkout of Stallwatch (make demo-live)"
        )
    missing = [name for name in ("torch", "deepspeed") if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotStart(
            f"--live requires {' and '.join(missing)}; run make demo-live, which installs the dependencies"
        )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--tee", "3"]
    return [*torchrun, str(_PROGRAM), *_LIVE_OPTIONS], 1


def _stallwatch() -> list[str]:
    """Return the command line that starts this installation of Stallwatch."""
    script = Path(sys.executable).with_name("stallwatch")
    return [str(script)] if script.exists() else own_main("stallwatch.cli")


def _short(command: list[str]) -> str:
    """Return the command line as a user would type it in the current folder."""
    here = f"{Path.cwd()}{os.sep}"
    words = ["stallwatch" if Path(word).name == "stallwatch" else word.removeprefix(here) for word in command]
    return shlex.join(["python", *words[1:]] if words[0] == sys.executable else words)


def _environment(home: Path, chat: str, floor: float) -> dict[str, str]:
    """Return the environment without the user's Stallwatch settings, so that real chats get no messages."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STALLWATCH_") or name.endswith("_LANGUAGE")
    }
    env |= {
        "STALLWATCH_CONFIG": os.devnull,
        "STALLWATCH_HOME": str(home),
        "STALLWATCH_ALERTS_URLS": chat,
        "STALLWATCH_STALL_FLOOR_SECONDS": f"{floor:g}",
        "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", "1"),
    }
    for name in ("NO_PROXY", "no_proxy"):  # the chat is on this host, so requests must bypass proxies
        env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1,localhost"]))
    return env


def _start_dashboard(
    children: Children, env: dict[str, str], home: Path, port: int, show: _Screen
) -> str | None:
    """Start the dashboard and wait until it responds. Return its URL, or `None` if it does not start."""
    port = _free_port(port)
    log = home / "dashboard.log"
    show.say("Starting the dashboard …")
    with log.open("wb") as out:
        child = children.start(
            [*_stallwatch(), "dashboard", "--port", str(port)], env, stdout=out, stderr=out
        )
    deadline = time.monotonic() + _DASHBOARD_PATIENCE
    while not _answers(port):
        if child.poll() is not None or time.monotonic() > deadline:
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            show.say("The dashboard did not start; the demo continues without it.", *last)
            return None
        time.sleep(0.1)
    url = f"http://127.0.0.1:{port}/run?run={RUN}"
    show.say(f"To watch the run, open this page: {url}")
    if _has_display():
        webbrowser.open(url)
    return url


def _watch(run: subprocess.Popen[bytes], folder: Path, show: _Screen) -> int:
    """On the screen, explain each change in the run's state until the run ends. Return its exit code."""
    shown_state = ""
    while True:
        ended = run.poll() is not None
        info = read_info(folder)
        if info is not None and info.state != shown_state:
            shown_state = info.state
            if shown_state in _STORY:
                show.say(_STORY[shown_state])
        if ended:
            return run.returncode
        time.sleep(0.2)


def _free_port(first: int) -> int:
    """Return the first free port, starting at `first`. If `first` is 0, the system chooses a port."""
    for port in range(first, min(first + 100, 65536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    return first


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _has_display() -> bool:
    if not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Children:
    """A context manager that starts processes.

    At the end of the block, the context manager ends the processes and all their descendants. An environment
    variable identifies descendants, because ranks under torchrun have their own sessions, and a process whose
    parent has died is no longer in the process tree.
    """

    def __init__(self, patience: float = 8.0) -> None:
        self._patience = patience
        self._token = secrets.token_hex(8)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str], env: Mapping[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process in its own session, so that Control+C in the terminal does not reach it."""
        child = subprocess.Popen(
            command,
            env={**env, _MARK: self._token},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
        self._started.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        # A second Control+C must not leave child processes running.
        with handling(lambda *_: None, signal.SIGINT, signal.SIGTERM):
            self.end()

    def end(self) -> None:
        """Interrupt all child processes, newest first. Terminate and then kill the remaining processes."""
        for child in reversed(self._started):
            if child.poll() is None:
                # The signal has the effect of Control+C, so `stallwatch run` ends its command and prints the
                # ending.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGINT)
        psutil.wait_procs(self._family(), timeout=self._patience / 2)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            # Repeat the list of processes each time, because a process can start another process before it
            # ends.
            family = self._family()
            for process in family:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(sign)
            psutil.wait_procs(family, timeout=self._patience / 2)
        for child in self._started:
            child.poll()

    def _family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(_MARK) == self._token and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found
