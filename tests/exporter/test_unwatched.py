"""The command without us: the same exit code, its own streams."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from stallwatch_exporter.running.capture import CommandProblem
from stallwatch_exporter.running.unwatched import run_unwatched


def test_output_and_exit_code_are_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_unwatched([sys.executable, "-c", "print('trained'); raise SystemExit(3)"]) == 3
    assert capfd.readouterr().out == "trained\n"
    assert run_unwatched([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_a_signal_to_us_reaches_the_command() -> None:
    code = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
os.kill({os.getpid()}, signal.SIGTERM)
time.sleep(60)
"""
    before = signal.getsignal(signal.SIGTERM)
    assert run_unwatched([sys.executable, "-c", code]) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(CommandProblem, match="command not found") as problem:
        run_unwatched(["no-such-command"])
    assert problem.value.exit_code == 127
