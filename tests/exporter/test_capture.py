"""The command's output arrives unchanged in files, pipes and terminals."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.running.capture import ByteQueue, Capture, Chunk, CommandProblem, run_unwatched
from stallwatch_exporter.running.signals import SignalRelay

FLOOD = """
import sys
for i in range(200_000):
    print(f"step {i} loss {i / 7:.4f}")
    if i % 50 == 0:
        sys.stderr.write(f"\\r{i}/200000")
"""


def through(
    code: str, tmp_path: Path, queue: ByteQueue | None = None, grace: float = 2.0
) -> tuple[bytes, bytes, int]:
    """Run Python code with its output in two files; return both outputs and the exit code."""
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        capture = Capture(
            [sys.executable, "-c", code], queue or ByteQueue(), stdout=stdout.fileno(), stderr=stderr.fileno()
        )
        code_ = capture.wait()
        capture.drain(grace)
    return out.read_bytes(), err.read_bytes(), code_


def test_flood_of_output_passes_without_a_reader(tmp_path: Path) -> None:
    queue = ByteQueue(max_bytes=1000)
    out, err, code = through(FLOOD, tmp_path, queue)
    assert out == "".join(f"step {i} loss {i / 7:.4f}\n" for i in range(200_000)).encode()
    assert err == "".join(f"\r{i}/200000" for i in range(0, 200_000, 50)).encode()
    assert code == 0
    assert queue.dropped > 100_000


def test_log_reader_receives_the_same_bytes_by_stream(tmp_path: Path) -> None:
    queue = ByteQueue()
    code = "import os; os.write(1, b'a\\xff\\r\\n'); os.write(2, b'\\x1b[1mb')"
    out, err, _ = through(code, tmp_path, queue)
    mined = {"stdout": b"", "stderr": b""}
    for chunk in queue.take(0):
        mined[chunk.stream] += chunk.data
    assert mined == {"stdout": b"a\xff\r\n", "stderr": b"\x1b[1mb"} == {"stdout": out, "stderr": err}


@pytest.mark.parametrize(
    ("code", "status"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("pass", 0)]
)
def test_exit_status_is_reported(code: str, status: int, tmp_path: Path) -> None:
    assert through(code, tmp_path)[2] == status


def test_output_of_python_in_a_pipe_is_unbuffered() -> None:
    read, write = os.pipe()
    capture = Capture(
        [sys.executable, "-c", "print(1); import signal; signal.pause()"], ByteQueue(), stdout=write, stderr=2
    )
    assert os.read(read, 1) == b"1"
    capture.send(signal.SIGKILL)
    assert capture.wait() == -9
    capture.drain()
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("make", "exit_code", "words"),
    [
        (lambda folder: "no-such-command", 127, "command not found"),
        (lambda folder: str(folder / "missing.sh"), 127, "command not found"),
        (lambda folder: _file(folder, 0o644, b"#!/bin/sh\n"), 126, "permission denied"),
        (lambda folder: _file(folder, 0o755, b"echo hi\n"), 126, "#!/bin/sh"),
    ],
)
def test_command_that_cannot_start_is_reported_like_a_shell_does(
    make: Callable[[Path], str], exit_code: int, words: str, tmp_path: Path
) -> None:
    before = open_files()
    with pytest.raises(CommandProblem, match=words) as problem:
        Capture([make(tmp_path)], ByteQueue())
    assert problem.value.exit_code == exit_code
    assert open_files() == before


def open_files() -> int:
    gc.collect()  # closes the files that earlier tests left open
    return len(list(Path("/proc/self/fd").iterdir()))


def _file(folder: Path, mode: int, content: bytes) -> str:
    path = folder / "script"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_closed_output_does_not_affect_the_command(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = tmp_path / "done"
    code = f"[print('x' * 1000) for _ in range(2000)]; open({str(done)!r}, 'w').close()"
    queue = ByteQueue()
    capture = Capture([sys.executable, "-c", code], queue, stdout=write, stderr=2)
    assert capture.wait() == 0
    capture.drain()
    os.close(write)
    assert done.exists()
    assert sum(len(chunk.data) for chunk in queue.take(0)) == 2_002_000


def test_full_disk_under_the_output_does_not_affect_the_command() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    capture = Capture([sys.executable, "-c", "print('x' * 200000)"], ByteQueue(), stdout=full, stderr=2)
    assert capture.wait() == 0
    capture.drain()
    os.close(full)


class WithoutMemory(ByteQueue):
    """Simulates a lack of memory for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def put(self, stream: str, data: bytes, time: float) -> None:
        if not self.refused:
            self.refused = 1
            raise MemoryError
        super().put(stream, data, time)


def test_agent_without_memory_does_not_affect_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory limit of the agent or of its control group is not a limit of the command."""
    queue, readv, left = WithoutMemory(), os.readv, [MemoryError(), MemoryError()]

    def scarce(*given: Any) -> int:
        if left:
            raise left.pop()
        return readv(*given)

    monkeypatch.setattr(os, "readv", scarce)
    out, _, code = through("print('trained'); raise SystemExit(3)", tmp_path, queue)
    assert (out, code, left) == (b"trained\n", 3, [])
    assert (queue.refused, queue.dropped) == (1, 1)


def test_command_inherits_descriptors_and_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen
    umasks: list[int] = []

    def start(command: Any, **given: Any) -> Any:
        umasks.append(given["umask"])
        if given["stdout"] != stdout.fileno():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return popen(command, **given)

    monkeypatch.setattr("stallwatch_exporter.running.keeper.Keeper.__init__", lambda *_: None)
    monkeypatch.setattr("stallwatch_exporter.running.keeper.Keeper.dismiss", lambda _: None)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("stallwatch_exporter.running.capture.usual_umask", lambda: 0o027)
    with (tmp_path / "out").open("wb") as stdout:
        command = [sys.executable, "-c", "print('trained'); raise SystemExit(3)"]
        capture = Capture(command, ByteQueue(), stdout=stdout.fileno(), stderr=2)
        code = capture.wait()
        capture.drain()
    assert ((tmp_path / "out").read_bytes(), code) == (b"trained\n", 3)
    assert capture.problem == "OSError: [Errno 24] Too many open files"
    assert umasks == [0o027, 0o027]


def test_grandchild_with_open_output_does_not_block_the_end(tmp_path: Path) -> None:
    code = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
print("left", child.pid)
"""
    out, _, status = through(code, tmp_path, grace=1.0)
    os.kill(int(out.split()[1]), signal.SIGKILL)
    assert status == 0


# --- terminals


class Terminal:
    """A terminal of 33 lines with 101 characters that keeps everything written to it."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        set_size(self.slave, 33, 101)
        self.seen = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            if not data:
                return
            self.seen += data

    def close(self) -> bytes:
        os.close(self.slave)
        self._thread.join()
        os.close(self.master)
        return self.seen


def set_size(fd: int, lines: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


DRAWS = r"""
import os, sys
print(os.isatty(1), os.isatty(2), os.get_terminal_size(2))
for i in range(50):
    sys.stderr.write(f"\r{i}%\x1b[0m")
    sys.stderr.flush()
    if i % 10 == 0:
        sys.stderr.write("\r    \r")
        sys.stderr.flush()
        print(f"step {i}", flush=True)
"""


def test_terminal_output_equals_that_without_stallwatch() -> None:
    plain, watched = Terminal(), Terminal()
    subprocess.run([sys.executable, "-c", DRAWS], stdout=plain.slave, stderr=plain.slave, check=True)
    capture = Capture([sys.executable, "-c", DRAWS], ByteQueue(), stdout=watched.slave, stderr=watched.slave)
    assert capture.wait() == 0
    capture.drain()
    expected = plain.close()
    assert expected.startswith(b"True True os.terminal_size(columns=101, lines=33)\r\n")
    assert watched.close() == expected


def test_only_terminal_streams_get_a_pseudo_terminal(tmp_path: Path) -> None:
    terminal, out = Terminal(), tmp_path / "out"
    code = "import os; os.write(2, b'%d%d' % (os.isatty(1), os.isatty(2)))"
    with out.open("wb") as stdout:
        capture = Capture(
            [sys.executable, "-c", code], ByteQueue(), stdout=stdout.fileno(), stderr=terminal.slave
        )
        assert capture.wait() == 0
        capture.drain()
    assert terminal.close() == b"01"


RESIZED = r"""
import os, signal, sys, time
signal.signal(signal.SIGWINCH, lambda *_: (print(os.get_terminal_size().columns), os._exit(0)))
os.write(1, b"ready\n")
while True:  # a signal that comes right before signal.pause() would be waited for in vain
    time.sleep(0.05)
"""


def test_new_window_size_reaches_the_command() -> None:
    terminal, queue = Terminal(), ByteQueue()
    capture = Capture([sys.executable, "-c", RESIZED], queue, stdout=terminal.slave, stderr=terminal.slave)
    assert queue.take(60, 1)[0].data == b"ready\n"
    set_size(terminal.slave, 20, 77)
    with SignalRelay() as relay:
        relay.attach(capture.send, capture.resize)
        os.kill(os.getpid(), signal.SIGWINCH)
        assert capture.wait() == 0
    capture.drain()
    assert terminal.close().endswith(b"77\r\n")


def test_pipe_replaces_an_unavailable_pseudo_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.ENOSPC, "out of pty devices")

    terminal, queue = Terminal(), ByteQueue()
    monkeypatch.setattr(os, "openpty", none_left)
    code = "import os; os.write(1, b'%d' % os.isatty(1) + os.environ['PYTHONUNBUFFERED'].encode())"
    capture = Capture([sys.executable, "-c", code], queue, stdout=terminal.slave, stderr=terminal.slave)
    assert capture.wait() == 0
    capture.drain()
    assert terminal.close() == b"01"
    assert capture.problem is None


@pytest.mark.parametrize("started", [0, 1])
def test_output_passes_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    real, count = threading.Thread.start, 0

    def start(thread: threading.Thread) -> None:
        nonlocal count
        count += 1
        if count > started:
            raise RuntimeError("can't start new thread")
        real(thread)

    before = open_files()
    monkeypatch.setattr(threading.Thread, "start", start)
    out, queue = tmp_path / "out", ByteQueue()
    with out.open("wb") as stdout:
        fd = stdout.fileno()
        capture = Capture([sys.executable, "-c", "print('trained'); exit(4)"], queue, stdout=fd, stderr=fd)
        assert capture.wait() == 4
        capture.drain()
    assert out.read_bytes() == b"trained\n"
    assert capture.problem == "RuntimeError: can't start new thread"
    assert open_files() == before


# --- signals

CATCHES = r"""
import os, signal, sys, time
def caught(number, frame):
    os.write(1, signal.Signals(number).name.encode())
    sys.exit(5)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"):
    signal.signal(getattr(signal, name), caught)
os.write(1, b"ready\n")
while True:  # a signal that comes right before signal.pause() would be waited for in vain
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_are_forwarded_to_the_command(number: signal.Signals, tmp_path: Path) -> None:
    queue = ByteQueue()
    with (tmp_path / "out").open("wb") as out:
        capture = Capture([sys.executable, "-c", CATCHES], queue, stdout=out.fileno(), stderr=2)
        with SignalRelay() as relay:
            relay.attach(capture.send, capture.resize)
            assert queue.take(60, 1)[0].data == b"ready\n"
            os.kill(os.getpid(), number)
            assert capture.wait() == 5
        capture.drain()
    assert queue.take(0)[0].data == number.name.encode()
    assert relay.passed_on == (number if number in (signal.SIGTERM, signal.SIGHUP) else None)


@pytest.mark.parametrize(("foreground", "sent"), [(True, []), (False, [signal.SIGINT])])
def test_ctrl_c_is_forwarded_only_outside_the_foreground(
    foreground: bool, sent: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_exporter.running.signals.in_foreground", lambda: foreground)
    got: list[signal.Signals] = []
    with SignalRelay() as relay:
        relay.attach(got.append, lambda: None)
        os.kill(os.getpid(), signal.SIGINT)
    assert got == sent and relay.interrupted and relay.passed_on is None


def test_ignored_signals_stay_ignored_and_handlers_are_restored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalRelay() as relay:
            relay.attach(lambda number: pytest.fail(str(number)), lambda: None)
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_before_the_start_of_the_command_is_not_lost() -> None:
    got: list[signal.Signals] = []
    with SignalRelay() as relay:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGWINCH)
        relay.attach(got.append, lambda: None)
    assert got == [signal.SIGTERM] and relay.passed_on == signal.SIGTERM


def test_output_and_exit_code_are_those_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_unwatched([sys.executable, "-c", "print('trained'); raise SystemExit(3)"]) == 3
    assert capfd.readouterr().out == "trained\n"
    assert run_unwatched([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_signal_reaches_an_unwatched_command() -> None:
    code = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
os.kill({os.getpid()}, signal.SIGTERM)
time.sleep(60)
"""
    before = signal.getsignal(signal.SIGTERM)
    assert run_unwatched([sys.executable, "-c", code]) == 5
    assert signal.getsignal(signal.SIGTERM) is before


def test_missing_command_is_reported() -> None:
    with pytest.raises(CommandProblem, match="command not found") as problem:
        run_unwatched(["no-such-command"])
    assert problem.value.exit_code == 127


def test_excess_bytes_are_dropped_counted_and_marked() -> None:
    queue = ByteQueue(max_bytes=10)
    queue.put("stdout", b"123456\n", 1.0)
    queue.put("stdout", b"a\nb\nc\n", 2.0)
    queue.put("stderr", b"x\n", 3.0)
    queue.put("stdout", b"no end", 4.0)
    assert queue.dropped == 4
    assert queue.take(0) == [
        Chunk("stderr", b"x\n", 3.0, stream="stderr"),
        Chunk("stdout", b"no end", 4.0, fresh=True, lost=4),
    ]
    queue.lose("stdout")
    queue.put("stdout", b"later", 5.0)
    queue.put("stdout", b"again", 6.0)
    assert [(chunk.fresh, chunk.lost) for chunk in queue.take(0)] == [(True, 1), (False, 0)]


def test_full_queue_keeps_the_start_the_end_and_the_smaller_stream() -> None:
    queue = ByteQueue(max_bytes=640)  # of which the first 10 bytes of each stream are kept
    for number in range(100):
        queue.put("stdout", b"line %3d\n" % number, float(number))
    queue.put("stderr", b"RuntimeError\n", 100.0)
    lines = [chunk.data for chunk in queue.take(0)]
    start, end = lines[:2], lines[2:]
    assert start == [b"line   0\n", b"line   1\n"]
    assert end == [*(b"line %3d\n" % number for number in range(100 - len(end) + 1, 100)), b"RuntimeError\n"]
    assert queue.dropped == 100 - len(lines) + 1
    assert 600 < sum(map(len, lines)) <= 640


def test_queue_ends_when_closed_and_empty() -> None:
    queue = ByteQueue()
    queue.put("stdout", b"x", 1.0)
    assert not queue.ended
    queue.close()
    assert not queue.ended
    assert queue.take(60) == [Chunk("stdout", b"x", 1.0, False)]
    assert queue.take(60) == []  # does not wait
    assert queue.ended
