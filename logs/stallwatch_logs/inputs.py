"""What can be wrong with the user's input, and how much of it is read."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from stallwatch_rules.text.controls import printable

CHUNK = 256 * 1024  #: bytes read at once
LATE = 2.0  #: seconds that others may need to give up what they read


class InputProblem(msgspec.Struct, frozen=True):
    """One thing that could not be read. The rest of what was asked for is still done."""

    path: str
    line: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{place}: {self.message}; {self.remedy}".replace("\n", " "))


class Limits(msgspec.Struct, frozen=True):
    """How much is read of each compressed file or archive, and until when anything is."""

    members: int = 10_000
    expanded: int = 64 * 1024**3
    ratio: int = 200  #: expanded to compressed bytes
    ratio_from: int = 1024**3  #: what expands to less is read soon, whatever its ratio
    until: float | None = None  #: monotonic time
    section: str = "archives"  #: of the configuration, where the limits are set

    @property
    def time_left(self) -> float | None:
        """Seconds, from 0 on; ``None`` if there is no end."""
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    def check_time(self) -> None:
        """Raise `TimeIsUp` if it is."""
        if self.time_left == 0.0:
            raise TimeIsUp

    def for_part(self) -> Limits:
        """The same for something that must leave as much time for what comes after it."""
        left = self.time_left
        return self if left is None else msgspec.structs.replace(self, until=time.monotonic() + left / 2)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the seconds that are left: the monotonic clock of another host has another beginning."""
        return _received, (
            self.members,
            self.expanded,
            self.ratio,
            self.ratio_from,
            self.time_left,
            self.section,
        )


def _received(
    members: int, expanded: int, ratio: int, ratio_from: int, left: float | None, section: str
) -> Limits:
    until = None if left is None else time.monotonic() + left
    return Limits(members, expanded, ratio, ratio_from, until, section)


class InputError(Exception):
    """Reading ends here; what came before it is good."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def problem(self, path: str) -> InputProblem:
        """The same for the user."""
        return InputProblem(path, None, self.message, self.remedy)


class TimeIsUp(InputError):
    """There is no time to read more."""

    def __init__(self) -> None:
        super().__init__("was not read to its end in the time given", "give it more with --timeout")


class Meter:
    """Counts what goes into a decompressor and what comes out, and stops what grows beyond the limits."""

    def __init__(self, limits: Limits, taken: int = 0) -> None:
        self._limits = limits
        self.taken = taken
        self.given = 0

    def inner(self) -> Meter:
        """For a compressed file within: the same limits, counted by itself."""
        return Meter(self._limits)

    def give(self, data: bytes) -> bytes:
        """Count what came out."""
        self.given += len(data)
        limits = self._limits
        limits.check_time()
        if self.given > limits.expanded and self.given > self.taken:
            raise InputError(
                f"expands to more than {limits.expanded / 1024**2:,.0f} MiB; the rest was not read",
                f"unpack it and give the log files themselves, or raise [{limits.section}] max_expanded_mb",
            )
        if self.given > limits.ratio_from and self.given > limits.ratio * max(self.taken, 1):
            raise InputError(
                f"expands to more than {limits.ratio} times its size, as a zip bomb does; "
                "the rest was not read",
                f"if it is a log all the same, unpack it and give the file itself, or raise "
                f"[{limits.section}] max_ratio",
            )
        return data


def is_sparse(path: str | int) -> bool:
    """Whether a file, by its path or its descriptor, has holes, or is gone: whoever reads it has to look."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return hasattr(os, "SEEK_DATA") and status.st_blocks * 512 < status.st_size
