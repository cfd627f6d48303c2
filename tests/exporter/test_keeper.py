"""If the agent is killed, the command lives, and its later output still arrives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import runs

from stallwatch_exporter.running.keeper import Keeper

RUN = [sys.executable, "-c", "from stallwatch.cli import main; main()", "run", "--no-metrics", "--"]
PRINTS = (
    "import os, pathlib, sys\n"
    "here = pathlib.Path(sys.argv[1])\n"
    "print('before')\n"
    "(here / 'told').write_text(str(os.getpid()))\n(here / 'go').read_text()\n"
    "print('after', 'x' * 100_000)\nprint('on stderr', file=sys.stderr)\n"
)


def test_command_can_print_after_its_agent_is_killed(tmp_path: Path) -> None:
    for pipe in ("told", "go"):
        os.mkfifo(tmp_path / pipe)
    command = [*RUN, sys.executable, "-c", PRINTS, str(tmp_path)]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert agent.stdout is not None and agent.stderr is not None
    assert (tmp_path / "told").read_text().isdigit()
    assert agent.stdout.readline() == b"before\n"
    agent.send_signal(signal.SIGKILL)
    agent.wait(timeout=120)
    (tmp_path / "go").write_text("on")
    assert agent.stdout.read() == b"after " + b"x" * 100_000 + b"\n"
    assert b"on stderr\n" in agent.stderr.read()


def test_ended_run_leaves_no_process(tmp_path: Path) -> None:
    command = [*RUN, sys.executable, "-c", "print('on')"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        assert run.communicate(timeout=120)[0] == b"on\n"
    assert run.returncode == 0
    until = time.monotonic() + 60
    while left := [pid for pid in psutil.pids() if session_of(pid) == run.pid and runs(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # the process has ended
        return None


def test_dismissed_keeper_copies_nothing(tmp_path: Path) -> None:
    source, write = os.pipe()
    with (tmp_path / "out").open("wb") as out:
        keeper = Keeper([(source, out.fileno())])
        os.write(write, b"still to be read by the agent")
        keeper.dismiss()
    assert os.read(source, 100) == b"still to be read by the agent"
    assert (tmp_path / "out").read_bytes() == b""
    with pytest.raises(ChildProcessError):
        os.waitpid(keeper._process.pid, 0)
    for fd in (source, write):
        os.close(fd)


def test_keeper_survives_termination_signals() -> None:
    (source, printing), (shown, target) = os.pipe(), os.pipe()
    keeper = Keeper([(source, target)])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(keeper._process.pid, number)
    os.close(source)
    os.close(target)
    os.close(keeper._life)  # as the agent's death does
    os.write(printing, b"after")
    os.close(printing)
    with os.fdopen(shown, "rb") as reading:
        assert reading.read() == b"after"
    assert keeper._process.wait(120) == 0


def test_stopped_keeper_does_not_delay_the_end() -> None:
    source, target = os.pipe()
    keeper = Keeper([(source, target)])
    os.kill(keeper._process.pid, signal.SIGSTOP)
    keeper.dismiss()
    assert keeper._process.wait(120) == -signal.SIGKILL
    os.close(source)
    os.close(target)
