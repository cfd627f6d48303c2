"""Run a minimal training program: print steps, then finish, crash, or pause for too long.

    python training.py SCENARIO NOTE [LOG]

The output depends only on the scenario. The program writes its longest pause between two steps and its exit
code to the file NOTE. From this file, a benchmark learns the outcome without the watcher. If LOG is given,
the program prints to this file and reopens the file if another process has moved it, as
``logging.handlers.WatchedFileHandler`` does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from pathlib import Path
from typing import IO

STEPS, TOTAL, PAUSE = 25, 100, 0.03
LONG = 4.5  #: length of a hang in seconds; with a floor of 0.1 s, Stallwatch reports a stall after 2 s
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    " 79.11 GiB of which 1.50 GiB is free."
)
TRACE = (
    f'Traceback (most recent call last):\n  File "training.py", line 7, in step\n    loss.backward()\n{OOM}\n'
)


class Output:
    """Standard output, or a log file that other processes can move or truncate."""

    def __init__(self, log: str | None) -> None:
        self._log = Path(log) if log else None
        self._file: IO[str] = self._log.open("a") if self._log else sys.stdout

    def line(self, text: str, *, error: bool = False) -> None:
        if self._log is None:
            print(text, file=sys.stderr if error else self._file, flush=True)
            return
        with contextlib.suppress(OSError):
            known = os.fstat(self._file.fileno())
            if not self._log.exists() or self._log.stat().st_ino != known.st_ino:
                self._file.close()
                self._file = self._log.open("a")
        self._file.write(text + "\n")
        self._file.flush()


class Training:
    """Counts steps and measures the longest pause between two steps."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._optimizer = None
        self._at = time.monotonic()
        self.longest = 0.0
        if os.environ.get("FAULTS_RINGS"):  # the trial provides an imitation of torch
            import torch.optim.optimizer

            self._optimizer = torch.optim.optimizer.Optimizer()

    def step(self, number: int) -> None:
        time.sleep(PAUSE)
        if self._optimizer is not None:
            self._optimizer.step()
        now = time.monotonic()
        self.longest, self._at = max(self.longest, now - self._at), now
        self._output.line(f"step {number}/{TOTAL} loss {1 / number:.5f} lr 0.001")


def train(scenario: str, training: Training, output: Output) -> int:
    """Run the training of the scenario and return its exit code."""
    end = TOTAL if scenario == "finish" else STEPS
    for number in range(1, STEPS + 1):
        training.step(number)
    if scenario == "crash":
        output.line(TRACE.rstrip(), error=True)
        return 1
    if scenario == "lingering-crash":
        output.line(OOM, error=True)
        time.sleep(LONG - 1.0)
        return 3
    if scenario == "hang":
        time.sleep(LONG)
        training._at = time.monotonic()
        end = STEPS + 15
    for number in range(STEPS + 1, end + 1):
        if scenario == "finish":
            output.line(f"step {number}/{TOTAL} loss {1 / number:.5f} lr 0.001")
        else:
            training.step(number)
    output.line("saved the model\r\n\té 完")
    return 0


def main(scenario: str, note: str, log: str | None = None) -> int:
    """Run the training and write its longest pause and its exit code to the file NOTE."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):  # undo the limits that a fault set on the agent
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (hard, hard))
    output = Output(log)
    training = Training(output)
    code = train(scenario, training, output)
    sys.stdout.flush()
    fresh = Path(note + ".new")
    fresh.write_text(f"{training.longest:.3f} {code}")
    fresh.replace(note)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
