"""Define problems with the user's input, and limits on the amount of input that is read."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from stallwatch_rules.text.controls import printable

CHUNK = 256 * 1024  #: number of bytes per read
LATE = 2.0  #: maximum seconds that other processes need to stop reading


class InputProblem(msgspec.Struct, frozen=True):
    """An input that could not be read; the rest of the request is still processed."""

    path: str
    line: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{place}: {self.message}; {self.remedy}".replace("\n", " "))


class Limits(msgspec.Struct, frozen=True):
    """Limits on reading compressed files and archives, and the deadline for all reading."""

    members: int = 10_000
    expanded: int = 64 * 1024**3
    ratio: int = 200  #: highest ratio of expanded to compressed bytes
    ratio_from: int = 1024**3  #: the ratio of smaller results is not limited, because they are read quickly
    until: float | None = None  #: deadline in monotonic time
    section: str = "archives"  #: section of the configuration that sets the limits

    @property
    def time_left(self) -> float | None:
        """Remaining seconds, at least 0; ``None`` without a deadline."""
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    def check_time(self) -> None:
        """Raise `TimeIsUp` if the deadline has passed."""
        if self.time_left == 0.0:
            raise TimeIsUp

    def for_part(self) -> Limits:
        """Return the same limits with half of the remaining time, for the first of two steps."""
        left = self.time_left
        return self if left is None else msgspec.structs.replace(self, until=time.monotonic() + left / 2)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the remaining seconds instead of the deadline.

        Another host has a different monotonic clock, with which the deadline cannot be compared.
        """
        return _received, (msgspec.structs.asdict(self), self.time_left)


def _received(fields: dict[str, Any], left: float | None) -> Limits:
    return Limits(**fields | {"until": None if left is None else time.monotonic() + left})


class InputError(Exception):
    """Error that ended the reading of an input early; the bytes that were read before it are valid."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def problem(self, path: str) -> InputProblem:
        """Return the error as a problem to report."""
        return InputProblem(path, None, self.message, self.remedy)


class TimeIsUp(InputError):
    """Error: time ran out before the input was read completely."""

    def __init__(self) -> None:
        super().__init__("was not read to its end in the time given", "give it more with --timeout")


class Meter:
    """Counter of the bytes that a decompressor reads and returns, which recognizes decompression bombs."""

    def __init__(self, limits: Limits, taken: int = 0) -> None:
        self._limits = limits
        self.taken = taken
        self.given = 0

    def inner(self) -> Meter:
        """Return a new meter with the same limits, for a compressed file inside an archive."""
        return Meter(self._limits)

    def give(self, data: bytes) -> bytes:
        """Count output bytes and return them. Raises `InputError` if they exceed the limits."""
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
                f"if it is a log, unpack it and give the file itself, or raise [{limits.section}] max_ratio",
            )
        return data


def is_sparse(path: str | int) -> bool:
    """Return whether a file (a path or a file descriptor) can have holes; True if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return hasattr(os, "SEEK_DATA") and status.st_blocks * 512 < status.st_size
