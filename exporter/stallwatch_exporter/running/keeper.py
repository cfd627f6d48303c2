"""Carries a command's output on when the agent that carried it is gone: killed, by hand or for its memory.

A program whose output nobody reads any more ends with a broken pipe. So this process holds the same ends as
the agent and sleeps; it wakes when the agent dies without having said good-bye. It is run as a script of its
own, standard library only, and costs some megabytes.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence

_PORTION = 65536
_GOODBYE_SECONDS = 2.0  # it only has to wake and leave
_IGNORED = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE),
    *(signal.SIGUSR1, signal.SIGUSR2),  # a scheduler sends them to all processes of a job
)


class Keeper:
    """The agent's end: `pairs` are what the command's output is read from and where it goes to."""

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        life, self._life = os.pipe()
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
            for fd in (life, *targets):
                os.close(fd)

    def dismiss(self) -> None:
        """The output was carried to its end: the keeper is not needed."""
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
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if not os.read(int(life), 1):
        parts = [pair.split(":") for pair in told]
        _carry_on({int(source): int(target) for source, target in parts})


if __name__ == "__main__":
    main(*sys.argv[1:])
