"""If the agent is killed, for example, because of its memory use, keep passing on the command's output.

If the output of a program has no reader, the program ends with a broken pipe. Therefore, a keeper process
holds the same descriptors as the agent and sleeps. The keeper process wakes up if the agent exits without
dismissing it. The keeper process runs as a separate script and needs a few megabytes. Imports that only the
agent needs are local because global imports would double the start time.
"""

from __future__ import annotations

import os
import select
import sys

_PORTION = 65536
_GOODBYE_SECONDS = 2.0  # seconds for the keeper process to wake up and exit


class Keeper:
    """Handle of the keeper process. `pairs` contains pairs of descriptors to read from and to write to."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        import signal
        import subprocess

        life, self._life = os.pipe()
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        # A scheduler sends SIGUSR1 and SIGUSR2 to all processes of a job. The child inherits the blocked
        # signals.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ends, signal.SIGUSR1, signal.SIGUSR2))
        targets: list[int] = []
        try:
            targets += [os.dup(target) for _, target in pairs]
            arguments = [f"{source}:{target}" for (source, _), target in zip(pairs, targets, strict=True)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(life), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(life, *targets, *(source for source, _ in pairs)),
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for fd in (life, *targets):
                os.close(fd)

    def dismiss(self) -> None:
        """End the keeper process because all output has been passed on."""
        import subprocess

        try:
            os.write(self._life, b"x")
        except OSError:
            pass  # the process has ended
        os.close(self._life)
        try:
            self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:  # the process is suspended or starved, so do not wait
            self._process.kill()


def _carry_on(pairs: dict[int, int]) -> None:
    while pairs:
        ready, _, _ = select.select(list(pairs), [], [])
        for source in ready:
            try:
                data = os.read(source, _PORTION)
            except OSError:  # all processes closed the other side of a pseudo-terminal
                data = b""
            if data:
                _write(pairs[source], data)
            else:
                os.close(source)
                del pairs[source]


def _write(target: int, data: bytes) -> None:
    """Write all bytes. If the output has no reader, drop the bytes, so that the command can continue."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(target, left) :]
    except OSError:
        pass


def main(life: str, *pairs: str) -> None:
    """Wait until the agent dismisses this process. If the agent is killed instead, pass on the output."""
    if not os.read(int(life), 1):
        parts = [pair.split(":") for pair in pairs]
        _carry_on({int(source): int(target) for source, target in parts})


if __name__ == "__main__":
    main(*sys.argv[1:])
