"""Define the problems that the user's inputs can have, and limits on the amount of data to read."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from stallwatch_rules.text.controls import printable

CHUNK = 256 * 1024  #: number of bytes in each read
LATE = 2.0  #: maximum time, in seconds, that other processes need to stop reading


class InputProblem(msgspec.Struct, frozen=True):
    """An input that could not be read. The other inputs of the request are still processed."""

    path: str
    line: int | None
    message: str
    remedy: str
    harmless: bool = False  #: True if the results are complete without this input, such as an empty file

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{place}: {self.message}; {self.remedy}".replace("\n", " "))


class Limits(msgspec.Struct, frozen=True):
    """Limits for compressed files and archives, and the deadline for all reading."""

    members: int = 10_000
    expanded: int = 64 * 1024**3
    ratio: int = 200  #: maximum ratio of decompressed to compressed bytes
    #: Minimum size of a result, in bytes, for which the ratio is limited. Smaller results are read quickly.
    ratio_from: int = 1024**3
    until: float | None = None  #: deadline, as a time of the monotonic clock
    section: str = "archives"  #: section of the configuration in which the user sets these limits

    @property
    def time_left(self) -> float | None:
        """The remaining time in seconds (at least 0), or ``None`` if there is no deadline."""
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    def check_time(self) -> None:
        """Raise `TimeIsUp` if the deadline has passed."""
        if self.time_left == 0.0:
            raise TimeIsUp

    def for_part(self) -> Limits:
        """Return limits with half of the remaining time, for the first of two steps."""
        left = self.time_left
        return self if left is None else msgspec.structs.replace(self, until=time.monotonic() + left / 2)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the remaining time instead of the deadline.

        The deadline refers to the monotonic clock of this host and is meaningless on another host.
        """
        return _received, (msgspec.structs.asdict(self), self.time_left)


def _received(fields: dict[str, Any], left: float | None) -> Limits:
    return Limits(**fields | {"until": None if left is None else time.monotonic() + left})


class InputError(Exception):
    """An error that ended the reading of an input. The bytes that were read before the error are valid."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def problem(self, path: str) -> InputProblem:
        """Return the error as a problem that can be reported."""
        return InputProblem(path, None, self.message, self.remedy)


class TimeIsUp(InputError):
    """An error for an input that was not read completely before the deadline."""

    def __init__(self) -> None:
        super().__init__("the time limit passed before the file was completely read", "increase --timeout")


class Meter:
    """A counter of the bytes that a decompressor reads and returns. It detects decompression bombs."""

    def __init__(self, limits: Limits, taken: int = 0) -> None:
        self._limits = limits
        self.taken = taken
        self.given = 0

    def inner(self) -> Meter:
        """Return a new meter with the same limits for a compressed file in an archive."""
        return Meter(self._limits)

    def give(self, data: bytes) -> bytes:
        """Count output bytes and return them. Raise `InputError` if their number exceeds a limit."""
        self.given += len(data)
        limits = self._limits
        limits.check_time()
        if self.given > limits.expanded and self.given > self.taken:
            raise InputError(
                f"the file expands to more than {limits.expanded / 1024**2:,.0f} MiB; the rest was not read",
                "unpack the file and specify the paths of the log files, or raise"
                f" [{limits.section}] max_expanded_mb",
            )
        if self.given > limits.ratio_from and self.given > limits.ratio * max(self.taken, 1):
            raise InputError(
                f"the file expands to more than {limits.ratio} times its size, like a zip bomb; "
                "the rest was not read",
                "if the file is a log, unpack it and specify its new path, or raise"
                f" [{limits.section}] max_ratio",
            )
        return data


def is_sparse(path: str | int) -> bool:
    """Return whether a file (a path or descriptor) can have holes, or True if the file does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return hasattr(os, "SEEK_DATA") and status.st_blocks * 512 < status.st_size
