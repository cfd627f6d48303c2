"""Carries a command's output on when the agent that carried it is gone: killed, by hand or for its memory.

A program whose output nobody reads any more ends with a broken pipe. So this process holds the same ends as
the agent and sleeps; it wakes when the agent dies without having said good-bye. It is run as a script of its
own and costs some megabytes. What only the agent needs is imported there: that is half of its start.
"""

from __future__ import annotations

import os
import select
import sys

_PORTION = 65536
_GOODBYE_SECONDS = 2.0  # it only has to wake and leave


class Keeper:
    """The agent's end: `pairs` are what the command's output is read from and where it goes to."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        import signal
        import subprocess

        life, self._life = os.pipe()
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        # A scheduler sends the last two to all processes of a job. What is blocked here stays blocked there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*ends, signal.SIGUSR1, signal.SIGUSR2))
        targets: list[int] = []
        try:
            targets += [os.dup(target) for _, target in pairs]
            told = [f"{source}:{target}" for (source, _), target in zip(pairs, targets, strict=True)]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(life), *told],
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
        """The output was carried to its end: the keeper is not needed."""
        import subprocess

        try:
            os.write(self._life, b"x")
        except OSError:
            pass  # it is gone
        os.close(self._life)
        try:
            self._process.wait(_GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:  # stopped, or starved: no reason to keep the agent from ending
            self._process.kill()


def _carry_on(pairs: dict[int, int]) -> None:
    while pairs:
        ready, _, _ = select.select(list(pairs), [], [])
        for source in ready:
            try:
                data = os.read(source, _PORTION)
            except OSError:  # everyone closed the other side of a pseudo-terminal
                data = b""
            if data:
                _write(pairs[source], data)
            else:
                os.close(source)
                del pairs[source]


def _write(target: int, data: bytes) -> None:
    """Write it; when nobody takes it any more, the command still must not notice."""
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(target, left) :]
    except OSError:
        pass


def main(life: str, *told: str) -> None:
    """Wait for the agent's good-bye; where it dies instead, carry on."""
    if not os.read(int(life), 1):
        parts = [pair.split(":") for pair in told]
        _carry_on({int(source): int(target) for source, target in parts})


if __name__ == "__main__":
    main(*sys.argv[1:])
