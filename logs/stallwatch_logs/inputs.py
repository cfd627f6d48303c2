"""What can be wrong with the user's input, and how much of it is read."""

from __future__ import annotations

import os

import msgspec

from stallwatch_rules.text.controls import printable

CHUNK = 256 * 1024  #: bytes read at once


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
    """How much one compressed file or archive may hold."""

    members: int = 10_000
    expanded: int = 64 * 1024**3
    ratio: int = 1000  #: expanded to compressed bytes
    ratio_from: int = 64 * 1024**2  #: small files may be smaller still


class InputError(Exception):
    """Reading ends here; what came before it is good."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def problem(self, path: str) -> InputProblem:
        """The same for the user."""
        return InputProblem(path, None, self.message, self.remedy)


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
        if self.given > limits.expanded:
            raise InputError(
                f"expands to more than {limits.expanded / 1024**3:.0f} GiB; the rest was not read",
                "unpack it and give the log files themselves",
            )
        if self.given > limits.ratio_from and self.given > limits.ratio * max(self.taken, 1):
            raise InputError(
                f"expands to more than {limits.ratio} times its size, as a zip bomb does; "
                "the rest was not read",
                "if it is a log all the same, unpack it and give the file itself",
            )
        return data


def is_sparse(path: str | int) -> bool:
    """Whether a file, by its path or its descriptor, has holes, or is gone: whoever reads it has to look."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return True
    return hasattr(os, "SEEK_DATA") and status.st_blocks * 512 < status.st_size
