"""What we say to the user on stderr: every line marked as ours, and never in the way of the watching."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from stallwatch_rules.text.controls import printable


def tell(text: str) -> None:
    """Say something on stderr, apart from what a command prints.

    Nobody may be there to hear it (a closed connection, a dead pipe, a full disk): then it goes unsaid, and
    whoever called goes on.
    """
    lines = printable(text.replace("\r\n", "\n")).rstrip("\n").split("\n")
    try:
        sys.stderr.write("".join(f"stallwatch: {line}".rstrip() + "\n" for line in lines))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # AttributeError: no stderr at all
        pass


def surviving(notice: Callable[[str], None]) -> Callable[[str], None]:
    """The same, for who goes on whether it could be said or not."""

    def say(text: str) -> None:
        with contextlib.suppress(Exception):
            notice(text)

    return say
