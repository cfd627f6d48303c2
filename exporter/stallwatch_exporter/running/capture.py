"""Start the command, copy its output to the agent's output and a queue, and wait for the command to end.

If the agent's own output is a terminal, the command gets a pseudo-terminal, so it still draws its progress
bars. Otherwise, the command gets a pipe. The pseudo-terminal is raw, so it does not change any bytes, and
the real terminal processes the output as usual. If stdout and stderr are the same terminal, they share a
pseudo-terminal, which keeps the output in order.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import termios
import threading
import time
import tty
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from stallwatch_exporter import steady
from stallwatch_exporter.notices import line_of
from stallwatch_exporter.private import usual_umask
from stallwatch_exporter.running.keeper import Keeper
from stallwatch_exporter.running.signals import SignalRelay

MAX_BYTES = 64 * 1024 * 1024  #: maximum number of bytes of output that were passed through but not read
_FIRST_PART = 64  # divisor: a queue reserves 1/64 of its size for the first bytes of each stream
_PORTION = 65536
_NEWLINE = ord("\n")
_LAST_BYTES = 4 * 1024 * 1024  # maximum number of bytes to copy at the end (more than a pipe can hold)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_NO_MEMORY_SECONDS = 0.05  # seconds between two attempts when memory is short
GRACE_SECONDS = 2.0  #: seconds for which a grandchild can keep the output open after the command

_Made = TypeVar("_Made")


class CommandProblem(Exception):
    """Raised if the command could not be started. `exit_code` is the code that a shell would return."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Chunk(NamedTuple):
    """Bytes from a source, and the time at which they were printed."""

    source: str
    data: bytes
    time: float
    fresh: bool = False  #: true if the preceding bytes were dropped or come from a different file
    stream: str = "stdout"
    rank: int | None = None  #: rank that printed all bytes of the source, if known
    lost: int = 0  #: number of dropped lines (or parts of lines) before these bytes


class _Part:
    """Queued chunks from one stream, and their total size in bytes."""

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.size = 0

    def pop(self) -> Chunk:
        chunk = self.chunks.popleft()
        self.size -= len(chunk.data)
        return chunk


class ByteQueue:
    """Bounded queue of output. It drops and counts excess bytes, so the command never has to wait.

    The queue drops the oldest bytes of the longest stream because the end of the output shows why a command
    failed. It keeps the first bytes of each stream, which show how the command was started.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.dropped = 0  #: number of lines (or parts of lines) that were dropped
        self._max = max_bytes
        self._first: defaultdict[str, _Part] = defaultdict(_Part)  # first output of each stream
        self._later: defaultdict[str, _Part] = defaultdict(_Part)
        self._bytes = 0
        self._added: Counter[str] = Counter()  # bytes of each stream so far
        self._lost: Counter[str] = Counter()  # lines of each stream that were dropped after its last chunk
        self._enough = 0  # number of bytes that a waiting reader needs
        self._closed = False
        self._change = threading.Condition()

    def put(self, stream: str, data: bytes, time: float) -> None:
        """Add bytes to the queue without waiting."""
        with self._change:
            lost = self._lost.pop(stream, 0)
            is_first = self._added[stream] < self._max // _FIRST_PART
            part = (self._first if is_first else self._later)[stream]
            part.chunks.append(Chunk(stream, data, time, lost > 0, stream, lost=lost))
            part.size += len(data)
            self._bytes += len(data)
            self._added[stream] += len(data)
            while self._bytes > self._max and self._later:
                stream, part = max(self._later.items(), key=lambda item: item[1].size)
                if not part.chunks:
                    break
                self._drop(stream, part)
            if self._bytes >= self._enough:
                self._change.notify()

    def keep_end(self, size: int) -> None:
        """Drop all but the first bytes and about the last `size` bytes of each stream."""
        with self._change:
            for stream, part in self._later.items():
                while part.chunks and part.size - len(part.chunks[0].data) >= size:
                    self._drop(stream, part)

    def _drop(self, stream: str, part: _Part) -> None:
        chunk = part.pop()
        self._bytes -= len(chunk.data)
        lines = chunk.data.count(b"\n") or 1
        self.dropped += lines
        lines += chunk.lost
        if part.chunks:
            after = part.chunks[0]
            part.chunks[0] = after._replace(fresh=True, lost=after.lost + lines)
        else:
            self._lost[stream] += lines

    def take(self, timeout: float, most: int = MAX_BYTES) -> list[Chunk]:
        """Wait up to `timeout` seconds for `most` bytes to be queued. Return queued chunks."""
        with self._change:
            self._enough = most
            if self._bytes < most and not self._closed:
                self._change.wait(timeout)
            taken: list[Chunk] = []
            end = self._bytes - most
            while self._bytes > max(end, 0):
                parts = [part for part in (*self._first.values(), *self._later.values()) if part.chunks]
                oldest = min(parts, key=lambda part: part.chunks[0].time)
                others = (part.chunks[0].time for part in parts if part is not oldest)
                until = min(others, default=float("inf"))
                while oldest.chunks and self._bytes > end and oldest.chunks[0].time <= until:
                    taken.append(oldest.pop())
                    self._bytes -= len(taken[-1].data)
            return taken

    def size(self, stream: str) -> int:
        """Return how many bytes from a stream are in the queue."""
        with self._change:
            return self._first[stream].size + self._later[stream].size

    def lose(self, stream: str) -> None:
        """Record that output from a stream could not be added."""
        with self._change:
            self.dropped += 1
            self._lost[stream] += 1

    def close(self) -> None:
        """Mark the end of the output and wake the waiting reader."""
        with self._change:
            self._closed = True
            self._change.notify()

    @property
    def waiting(self) -> bool:
        """Return whether the queue contains chunks."""
        with self._change:
            return self._bytes > 0

    @property
    def ended(self) -> bool:
        """Return whether the queue is closed and empty."""
        with self._change:
            return self._closed and not self._bytes


class Pump:
    """Copy `source` to `target` and the queue until the source ends, or until it is empty after `finish`.

    The buffer is allocated at the start, so the output is still passed on if memory runs out.
    """

    def __init__(
        self,
        name: str,
        source: int,
        target: int,
        queue: ByteQueue,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        self._name = name
        self._source = source
        self._target: int | None = target
        self._queue = queue
        self._clock = clock
        self._line = line_of(target)
        self._portion = memoryview(bytearray(_PORTION))
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"pump {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is available
            os.close(self._wake_write)
            os.close(self._wake_read)
            raise

    def finish(self, grace: float) -> None:
        """Wait up to `grace` seconds for the end of the stream, then copy the available output and stop."""
        self._thread.join(grace)
        os.write(self._wake_write, b"x")
        self._thread.join()  # only the agent's own output can delay this call
        os.close(self._wake_write)
        os.close(self._wake_read)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        last: int | None = None  # maximum number of bytes to copy after `finish` stops waiting
        while last is None or last > 0:
            ready = dict(_patiently(partial(poll.poll, None if last is None else 0)))
            if self._source in ready:
                count = _patiently(self._read)
                if not count:
                    break
                self._write(count)
                self._enqueue(count)
                last = None if last is None else last - count
            elif last is not None:
                break
            if self._wake_read in ready and last is None:
                last = _LAST_BYTES
        os.close(self._source)

    def _read(self) -> int:
        try:
            return os.readv(self._source, [self._portion])
        except OSError:
            return 0  # EIO: all processes closed the other side of the pseudo-terminal

    def _enqueue(self, count: int) -> None:
        try:
            self._queue.put(self._name, bytes(self._portion[:count]), self._clock())
        except MemoryError:
            _patiently(lambda: self._queue.lose(self._name))

    def _write(self, count: int) -> None:
        """Write all bytes. If the agent's output has no reader, drop the bytes."""
        written = 0
        while written < count and self._target is not None:
            try:
                written += os.write(self._target, self._portion[written:count])
            except MemoryError:
                time.sleep(_NO_MEMORY_SECONDS)
            except BlockingIOError:
                waiting = select.poll()
                waiting.register(self._target, select.POLLOUT)
                waiting.poll()
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EIO, errno.EBADF):
                    self._target = None
                return  # after an error such as a full disk, the next bytes might fit again
        self._line.ended = self._portion[count - 1] == _NEWLINE


def _patiently(work: Callable[[], _Made]) -> _Made:
    """Call a function repeatedly until there is enough memory for the call."""
    while True:
        try:
            return work()
        except MemoryError:
            time.sleep(_NO_MEMORY_SECONDS)


class Capture:
    """A running command, whose output goes to the descriptors `stdout` and `stderr`, and to `queue`."""

    def __init__(
        self,
        command: Sequence[str],
        queue: ByteQueue,
        *,
        stdout: int = 1,
        stderr: int = 2,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = steady.now,
    ) -> None:
        environment = dict(os.environ if environ is None else environ)
        self.problem: str | None = None  #: reason why the output is not passed through, or None
        self._pumps: list[Pump] = []
        self._carried: list[tuple[int, int]] = []  # pairs of descriptors to read from and to write to
        self._keeper: Keeper | None = None
        self._terminals: list[tuple[int, int]] = []  # pairs of a pseudo-terminal and its real terminal
        channels: list[int] = []  # descriptors for the command to write to
        out, err = stdout, stderr
        try:
            # Before the command starts, a lack of descriptors or threads can still be handled.
            out = err = self._carry("stdout", stdout, queue, clock, channels)
            if not _same_terminal(stdout, stderr):
                err = self._carry("stderr", stderr, queue, clock, channels)
        except (OSError, RuntimeError) as error:  # no descriptor or no thread is available
            self.problem = f"{type(error).__name__}: {error}"
            self._let_go(channels)
            self._terminals.clear()
            out, err = stdout, stderr
        if self._carried and self.problem is None:
            with contextlib.suppress(OSError):  # the agent does not require a keeper process
                self._keeper = Keeper(self._carried)
        if not os.isatty(out):
            # Turn off the buffer that Python uses for output to pipes. The buffer holds up to 8 KiB. During a
            # hang, the buffer would hold back the most important lines.
            environment.setdefault("PYTHONUNBUFFERED", "1")

        def start(out: int, err: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(command, stdout=out, stderr=err, env=environment, umask=usual_umask())

        try:
            self._child = start(out, err)
        except OSError as error:
            self._let_go(channels)
            if error.errno not in _SCARCE or self.problem is not None:
                raise start_problem(command[0], error) from error
            # The command might have failed to start because the agent uses too many descriptors.
            self.problem = f"{type(error).__name__}: {error}"
            try:
                self._child = start(stdout, stderr)
            except OSError as problem:
                raise start_problem(command[0], problem) from problem
        for fd in channels:
            os.close(fd)
        self.pid = self._child.pid

    def wait(self) -> int:
        """Wait for the command and return its exit status in the form of `subprocess`."""
        return self._child.wait()

    def drain(self, grace: float = GRACE_SECONDS) -> None:
        """Pass on the remaining output after the command has ended."""
        deadline = time.monotonic() + grace
        for pump in self._pumps:
            pump.finish(max(0.0, deadline - time.monotonic()))
        self._dismiss_keeper()

    def send(self, number: signal.Signals) -> None:
        """If the command is still running, send a signal to it."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def resize(self) -> None:
        """Pass a new window size on to the command."""
        for pseudo, real in self._terminals:
            _copy_size(real, pseudo)
        if self._terminals:
            self.send(signal.SIGWINCH)

    def _carry(
        self, name: str, ours: int, queue: ByteQueue, clock: Callable[[], float], channels: list[int]
    ) -> int:
        """Return a descriptor that the command can write to. Start passing on the command's output."""
        source, its = self._channel(ours)
        channels.append(its)
        try:
            self._pumps.append(Pump(name, source, ours, queue, clock))
            self._carried.append((source, ours))
        except (OSError, RuntimeError):
            os.close(source)
            raise
        return its

    def _channel(self, ours: int) -> tuple[int, int]:
        """Return the descriptor that the agent reads, and the descriptor that the command writes to."""
        if os.isatty(ours):
            with contextlib.suppress(OSError, termios.error):  # if there is no pseudo-terminal, use a pipe
                return self._terminal(ours)
        return os.pipe()

    def _terminal(self, ours: int) -> tuple[int, int]:
        pseudo, its = os.openpty()
        try:
            tty.setraw(its)
        except termios.error:
            os.close(pseudo)
            os.close(its)
            raise
        _copy_size(ours, pseudo)
        self._terminals.append((pseudo, ours))
        return pseudo, its

    def _let_go(self, channels: list[int]) -> None:
        """Stop passing on output because the command does not use these descriptors."""
        for fd in channels:
            os.close(fd)
        channels.clear()
        for pump in self._pumps:
            pump.finish(GRACE_SECONDS)
        self._pumps.clear()
        self._dismiss_keeper()

    def _dismiss_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.dismiss()
            self._keeper = None


def _same_terminal(first: int, other: int) -> bool:
    return os.isatty(first) and os.isatty(other) and os.fstat(first).st_rdev == os.fstat(other).st_rdev


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):  # a descriptor can already be closed
        fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, b"\0" * 8))


def start_problem(name: str, error: OSError) -> CommandProblem:
    """Return the error that explains why the command could not be started."""
    if error.errno == errno.ENOENT:
        return CommandProblem(f"{name}: command not found", 127)
    if error.errno == errno.ENOEXEC:
        return CommandProblem(
            f"{name}: not an executable program; if it is a script, add a first line such as #!/bin/sh", 126
        )
    return CommandProblem(f"{name}: cannot be run: {(error.strerror or str(error)).lower()}", 126)


def run_unwatched(command: Sequence[str]) -> int:
    """Run a command that cannot be watched. Return its exit code.

    The command writes directly to the agent's own output.
    """
    with SignalRelay() as relay:
        try:
            child = subprocess.Popen(command, umask=usual_umask())
        except OSError as error:
            raise start_problem(command[0], error) from error
        relay.attach(child.send_signal, lambda: None)
        returncode = child.wait()
    return 128 - returncode if returncode < 0 else returncode
