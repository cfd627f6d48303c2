"""The exit status of a rank is read from outside, before its launcher reaps it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallwatch_exporter.rings import exits as module
from stallwatch_exporter.rings.exits import Exits


@functools.cache
def tells() -> bool:
    """Return True if this system reports exit statuses: old kernels and sandboxes do not."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        with subprocess.Popen(["sh", "-c", "exit 7"]) as process:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            return Path(f"/proc/{process.pid}/stat").read_text().split()[-1] == str(7 << 8)
    except (AttributeError, OSError):
        return False


@pytest.fixture
def exits() -> Iterator[Exits]:
    if not tells():
        pytest.skip("nobody tells here")
    made = Exits()
    yield made
    made.close()


def child(end: str) -> subprocess.Popen[bytes]:
    """Start a child process that ends in this way after a signal from the test."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import os, signal, sys\nsys.stdin.read()\n{end}"], stdin=subprocess.PIPE
    )


def let_end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def wait_for(exits: Exits, key: Path) -> int:
    until = time.monotonic() + 120
    while key not in exits.codes:
        assert time.monotonic() < until, "no report"
        time.sleep(0.01)
    return exits.codes[key]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("", 0),
    ],
)
def test_end_of_a_process_is_observed(exits: Exits, end: str, code: int) -> None:
    with child(end) as process:
        try:
            exits.watch(Path("0.ring"), process.pid, time.time())
            assert exits.codes == {}
            let_end(process)
            assert wait_for(exits, Path("0.ring")) == code
        finally:
            process.kill()


def test_ended_or_replaced_process_is_not_watched(exits: Exits) -> None:
    with child("") as process:
        exits.watch(Path("early.ring"), process.pid, 1.0)  # the process id belonged to another process then
        exits.watch(Path("there.ring"), process.pid, time.time())
        let_end(process)
        wait_for(exits, Path("there.ring"))
    exits.watch(Path("late.ring"), process.pid, time.time())
    assert exits.codes == {Path("there.ring"): 0} and exits._watched == {}


def test_running_process_leaves_nothing_open(exits: Exits) -> None:
    with child("") as process:
        exits.watch(Path("0.ring"), process.pid, time.time())
        (fd,) = exits._watched
        exits.close()
        assert exits._watched == {} and exits._epoll is None
        let_end(process)
    assert fd >= 0 and exits.codes == {}


def test_unreferenced_watch_leaves_no_thread_or_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of a ring need not close it."""
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)
    before = set(threading.enumerate())
    exits = Exits()
    with child("") as process:
        exits.watch(Path("0.ring"), process.pid, time.time())
        (thread,) = set(threading.enumerate()) - before
        (fd,) = exits._watched
        inode = os.fstat(fd).st_ino
        del exits
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()
        with contextlib.suppress(OSError):
            assert os.fstat(fd).st_ino != inode
        let_end(process)


def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def no_descriptor() -> None:
    raise OSError(24, "Too many open files")


@pytest.mark.parametrize(
    ("where", "what", "how"), [(threading.Thread, "start", refuse), (select, "epoll", no_descriptor)]
)
def test_missing_thread_or_descriptor_leaves_only_one_code_unknown(
    exits: Exits, monkeypatch: pytest.MonkeyPatch, where: object, what: str, how: object
) -> None:
    with child("") as first, child("raise SystemExit(4)") as second:
        with monkeypatch.context() as scarce:
            scarce.setattr(where, what, how)
            exits.watch(Path("0.ring"), first.pid, time.time())
        assert exits._watched == {} and exits._epoll is None
        exits.watch(Path("1.ring"), second.pid, time.time())
        let_end(first)
        let_end(second)
        assert wait_for(exits, Path("1.ring")) == 4
    assert list(exits.codes) == [Path("1.ring")]
