"""Kernel data on processes: real ones, and lines in the format of /proc."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stallwatch_exporter.stacks import processes
from stallwatch_exporter.stacks.processes import children_transferred, condition, handles, lock_holders

WAITS = """
import fcntl, sys
with open(sys.argv[1]) as file:
    print("ready", flush=True)
    fcntl.flock(file, fcntl.LOCK_EX)
"""


def test_waiter_and_holder_of_a_file_lock_are_found(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", WAITS, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            until = time.monotonic() + 120
            while lock_holders().get(child.pid) != os.getpid():
                assert time.monotonic() < until
                time.sleep(0.01)
            child.kill()


def test_condition_follows_the_process_state(tmp_path: Path) -> None:
    for number, (state, expected) in enumerate(
        [
            ("S (sleeping)", "alive"),
            ("T (stopped)", "stopped"),
            ("D (disk sleep)", "blocked"),
            ("Z (zombie)", "ended"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "status").write_text(f"Name:\tpython\nState:\t{state}\nSigQ:\t0/1\n")
        assert condition(number, tmp_path) == expected
    assert condition(99, tmp_path) == "ended"
    assert condition(99, tmp_path / "no-proc") == "alive"


def test_signal_is_handled_only_if_caught_and_unblocked(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    status = tmp_path / "7" / "status"
    status.write_text("SigBlk:\t0000000000000000\nSigCgt:\t0400000000000000\n")
    assert handles(7, 59, tmp_path) and not handles(7, 58, tmp_path)
    status.write_text("SigBlk:\t0400000000000000\nSigCgt:\t0400000000000000\n")
    assert not handles(7, 59, tmp_path)
    assert not handles(8, 59, tmp_path)


WRITES = "import sys; open('/dev/null', 'wb').write(bytes(1_000_000)); print(flush=True); sys.stdin.read()"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc with counts of bytes")
def test_bytes_of_each_child_are_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert children_transferred(os.getpid())[child.pid] >= 1_000_000
        child.kill()


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        # on an overloaded machine, a thread that computes mostly waits for a processor
        ({"schedstat": "786000000 3414000000 270\n"}, 4.2),
        ({"schedstat": "0 0 0\n", "stat": f"7 (a) b) R {'0 ' * 10}77 1 0\n"}, 78 / os.sysconf("SC_CLK_TCK")),
        ({"stat": f"7 (a) b) R {'0 ' * 10}77 1 0\n"}, 78 / os.sysconf("SC_CLK_TCK")),
        ({}, None),
    ],
)
def test_time_of_a_thread_that_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], seconds: float | None
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    thread = tmp_path / "7/task/7"
    thread.mkdir(parents=True)
    for name, text in files.items():
        (thread / name).write_text(text)
    assert processes.processor_seconds(7) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("machine", "call", "reads"),
    [
        ("x86_64", "0 0x0 0x55d0 0x2000 0x7ffa 0x0 0x0 0x7ffe 0x7ffa", True),  # read(0, …)
        ("x86_64", "270 0x1 0x7ffc 0x0 0x0 0x0 0x0 0x7ffe 0x7ffa", True),  # pselect6(1, …)
        ("aarch64", "63 0x0 0xaaaa 0x2000 0x0 0x0 0x0 0xffff 0xffff", True),
        ("x86_64", "0 0x3 0x55d0 0x2000 0x7ffa 0x0 0x0 0x7ffe 0x7ffa", False),
        ("x86_64", "270 0x4 0x7ffc 0x0 0x0 0x0 0x0 0x7ffe 0x7ffa", False),
        ("x86_64", "running", False),
        ("riscv64", "0 0x0 0x55d0", False),
    ],
)
def test_wait_for_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, call: str, reads: bool
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: machine)
    thread = tmp_path / "7/task/7"
    thread.mkdir(parents=True)
    (thread / "syscall").write_text(call + "\n")
    assert processes.reads_input(7) is reads
    assert not processes.reads_input(8)
