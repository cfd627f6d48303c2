"""Print notices to the user on stderr, and report each internal error once without raising it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from stallwatch_rules.text.controls import printable


class OutputLine:
    """State of the last line in a file or terminal that receives the command's output."""

    ended = True


_LINES: dict[tuple[int, int], OutputLine] = {}


def line_of(descriptor: int) -> OutputLine:
    """Return the state of the last line in the descriptor's file. Stdout and stderr can share a file."""
    try:
        file = os.fstat(descriptor)
    except OSError:
        return OutputLine()
    return _LINES.setdefault((file.st_dev, file.st_ino), OutputLine())


def begin_line(stream: TextIO) -> None:
    """If the command's last line has no newline, for example, after a progress bar, print a newline."""
    try:
        line = line_of(stream.fileno())
    except (OSError, ValueError, AttributeError):  # not a file, so it contains no output of the command
        return
    if not line.ended:
        line.ended = True
        stream.write("\n")


def print_notice(text: str) -> None:
    """Print a notice on its own line of stderr.

    If stderr is not writable because of a closed connection, a broken pipe, or a full disk, the notice is
    lost.
    """
    lines = printable(text.replace("\r\n", "\n")).rstrip("\n").split("\n")
    try:
        begin_line(sys.stderr)
        sys.stderr.write("".join(f"stallwatch: {line}".rstrip() + "\n" for line in lines))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # AttributeError means that there is no stderr
        pass


def surviving(notice: Callable[[str], None]) -> Callable[[str], None]:
    """Wrap a notice function so that it never raises an error."""

    def say(text: str) -> None:
        with contextlib.suppress(Exception):
            notice(text)

    return say


class Guard:
    """Run parts of the agent's work and report their errors: ``with guard("reading the log"):``."""

    def __init__(self, notice: Callable[[str], None], outlook: str = "the run continues") -> None:
        """Set up the guard. Notices end with `outlook`, which states what the error does not affect."""
        self.errors = 0
        self._outlook = outlook
        self._notice = notice
        self._reported: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run the ``with`` block. If it raises an error, print a notice about `what`, once for each name."""
        try:
            yield
        except Exception as error:
            self.errors += 1
            if what not in self._reported:
                self._reported.add(what)
                cause = type(error).__name__
                # Import late because ranks and every command load this module. The import can fail if no
                # descriptor is free.
                with contextlib.suppress(OSError):
                    from stallwatch_rules.text.redact import redact

                    cause += f": {redact(str(error))}"
                self._notice(f"{what} failed ({cause}); {self._outlook}")


def at_the_end(notice: Callable[[str], None]) -> Guard:
    """Return a guard for errors after the command's end. Such errors must not change the exit code."""
    return Guard(surviving(notice), "the exit code of the command is unchanged")


def guard_threads(notice: Callable[[str], None]) -> None:
    """If an error ends a thread of this process, print a notice instead of a traceback."""
    guard = Guard(surviving(notice))

    def report(ended: threading.ExceptHookArgs) -> None:
        with guard(f"the thread {ended.thread.name if ended.thread is not None else '?'}"):
            if ended.exc_value is not None:
                raise ended.exc_value

    threading.excepthook = report
