"""Answer the agent's queries about the state of a rank. The agent sends queries only during a stall.

* A thread waits on a named pipe next to the ring, which costs nothing until the agent writes to the pipe. The
  agent writes a number, and the thread answers with the state of the process (see ``answers``). The state of
  the collectives comes last. Several agents can query at the same time because their numbers come from the
  monotonic clock. An answer contains the greatest number so far and is valid for all smaller numbers.
* The thread makes no progress while other code holds the interpreter lock. Therefore, ``faulthandler`` also
  handles a real-time signal that is otherwise unused. ``faulthandler`` needs no lock and writes to a separate
  file.

A forked process has neither the thread nor the signal until it is identified as a rank. ``exec`` ends both
because it closes descriptors and resets signal handlers. Therefore, before the agent sends the signal, it
checks that the handler still exists.
"""

from __future__ import annotations

# If the command is a Python program, the program loads this module when it starts. Importing `json`,
# `pathlib`, `signal`, and `typing` would take four times as long as loading this module without them.
# `signal` only adds names to `_signal`.
import _thread
import faulthandler
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any

    from .api import Probe
    from .forward_passes import ForwardPasses
else:
    import _signal

#: Suffixes of files next to ``<name>.ring``: the pipe for queries, the answer, the part of the answer about
#: torch, the faulthandler file, and the number of the signal that makes faulthandler write.
QUERY, ANSWER, COLLECTIVES, FAULT, SIGNAL = ".ask", ".stacks", ".collectives", ".fault", ".signal"
SIGNALS_TRIED = 8
MOST_BYTES = 4 << 20  #: Maximum size of an answer. Longer answers are not written.
_QUERY_BYTES = 4096  # maximum number of bytes of queries that are read in one call
_LEAST_DESCRIPTOR = 64  # a program can inherit lower numbers, such as descriptor 3, from its parent


class Answerer:
    """Object that answers the agent's queries in this process. `base` is the path of the ring."""

    def __init__(self, base: str) -> None:
        self.pid = os.getpid()
        self.probe: Probe | None = None  #: set after this process is known to be a rank
        self._forward_passes: ForwardPasses | None = None
        self._newest = 0  # number of the newest query
        self._base = base
        self._fault: int | None = None
        try:
            self._stand_by()
        except (OSError, ValueError, RuntimeError):
            pass

    def listen(self) -> None:
        """Start the thread that waits for queries. Raises an error if no pipe or thread is available."""
        # Import these modules now, because an import during a stall could wait for a disk or an import
        # lock.
        import json  # noqa: F401
        import select

        from . import answers  # noqa: F401

        if self.probe is not None:
            from .forward_passes import ForwardPasses

            self._forward_passes = ForwardPasses(self.probe)
        pipe = _beside(self._base, QUERY)
        os.mkfifo(pipe, 0o600)
        # Also open the pipe for writing. Otherwise, reading would reach the end of the pipe when agents close
        # it.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        self._identity = _identity(self._pipe)
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)
        # Do not use a Thread object, because other code could count or join it.
        _thread.start_new_thread(self._wait, ())

    def move(self, base: str) -> None:
        """Rename the files to match a different `base`. The signal stays registered."""
        before, self._base = self._base, base
        if self._fault is not None:
            for suffix in (FAULT, SIGNAL):
                os.rename(_beside(before, suffix), _beside(base, suffix))

    def leave(self) -> None:
        """Remove the files when the process ends. A forked child does not remove its parent's files."""
        if self.pid == os.getpid():
            for suffix in (SIGNAL, FAULT):
                _remove(_beside(self._base, suffix))

    def look_after_signal(self) -> dict[str, float]:
        """If Python code handles the signal, stop offering the signal to the agent.

        This sampler returns no values.
        """
        taken = self._fault is not None and _signal.getsignal(self._fault) not in (_signal.SIG_DFL, None)
        if taken and self.pid == os.getpid():
            self._fault = None
            _remove(_beside(self._base, SIGNAL))
        return {}

    def _stand_by(self) -> None:
        number = free_signal()
        if number is None:
            return
        path = _beside(self._base, FAULT)
        fd = _high(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
        # Do not use `chain`, because no other handler exists. In addition, with `chain`, Python would not let
        # the kernel restart the system calls that the signal interrupts (CPython, Modules/faulthandler.c,
        # SA_RESTART).
        faulthandler.register(number, file=fd, all_threads=True, chain=False)
        self._fault = number
        _write(_beside(self._base, SIGNAL), f"{number} {fd}\n".encode())

    def _wait(self) -> None:
        try:
            # Block all signals in this thread, so that the program's own threads receive them.
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            # The training program can close descriptors that it did not open. The number of the pipe's
            # descriptor can then refer to a different file.
            while _identity(self._pipe) == self._identity:
                left = self._forward_passes.left() if self._forward_passes is not None else None
                if left is not None and (
                    not self._poll.poll(left * 1000) or _identity(self._pipe) != self._identity
                ):
                    continue
                queries = os.read(self._pipe, _QUERY_BYTES)
                if not queries or os.getpid() != self.pid:
                    return
                numbers = (int(query) for query in queries.split() if query.isdigit())
                self._newest = max([self._newest, *numbers])
                self._answer()
        except Exception:  # if there is no answer, the agent uses other methods
            pass

    def _answer(self) -> None:
        import json

        from .answers import collectives, counters, stacks

        try:
            if self._forward_passes is not None:
                self._forward_passes.begin()
        except Exception:  # answer without counting forward passes
            pass
        probe = self.probe

        def state() -> dict[str, Any]:
            counted = {"counters": counters(probe)} if probe is not None else {}
            return {**stacks(), **counted}

        for suffix, answer in ((ANSWER, state), (COLLECTIVES, collectives)):
            try:
                found = {"asked": str(self._newest), **answer()}
                data = json.dumps(found, default=str).encode("ascii", "replace")
                if len(data) <= MOST_BYTES:
                    _write(_beside(self._base, suffix), data)
            except Exception:
                continue  # For example, the disk is full. The other part might still fit.


def free_signal() -> int | None:
    """Return a free real-time signal, or ``None`` if no such signal is free.

    A signal is free if this process does not handle, ignore, or block it.
    """
    if not hasattr(_signal, "SIGRTMAX"):
        return None
    masks = signal_masks("/proc/self/status")
    taken = masks["SigCgt"] | masks["SigIgn"] | masks["SigBlk"]
    for number in range(_signal.SIGRTMAX - 5, _signal.SIGRTMAX - 5 - SIGNALS_TRIED, -1):
        if not taken >> (number - 1) & 1 and _signal.getsignal(number) == _signal.SIG_DFL:
            return int(number)
    return None


def signal_masks(status: str) -> dict[str, int]:
    """Return the signals that a process handles, ignores, or blocks, as bit masks (proc_pid_status(5))."""
    masks = {"SigCgt": 0, "SigIgn": 0, "SigBlk": 0}
    with open(status, encoding="ascii", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in masks:
                masks[name] = int(value, 16)
    return masks


def _high(fd: int) -> int:
    """Move a descriptor to a high number, which other code rarely uses. Return that number."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    except OSError:
        return fd
    os.close(fd)
    return high


def _identity(fd: int) -> tuple[int, int, bool]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino, stat.S_ISFIFO(about.st_mode)


def _beside(ring: str, suffix: str) -> str:
    return os.path.splitext(ring)[0] + suffix


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _write(path: str, data: bytes) -> None:
    fresh = path + ".new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError("only a part of the data was written")
    finally:
        os.close(fd)
    os.replace(fresh, path)


_answerer: Answerer | None = None


def register_own_signal(base: str) -> Answerer:
    """Register the signal when the process starts, before it is known whether the process is a rank."""
    global _answerer
    _answerer = Answerer(base)
    return _answerer


def start_answering(probe: Probe, ring: str) -> None:
    """Let the agent query this process through files next to its `ring`. Further calls do nothing."""
    global _answerer
    try:
        if _answerer is None or _answerer.pid != os.getpid():
            _answerer = Answerer(ring)
        elif _answerer.probe is None:  # only the signal has been registered
            _answerer.move(ring)
        else:
            return
        _answerer.probe = probe
        probe.samplers.append(_answerer.look_after_signal)
        _answerer.listen()
    except Exception:  # No pipe or thread is available, so this process cannot answer queries.
        probe.failed()
