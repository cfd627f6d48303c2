"""The beginning of a file, by which it is judged: the same bytes however they come.

Pipes, archives and disks give portions of different sizes, and the same log is the same log by each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from stallwatch_logs.inputs import InputError
from stallwatch_rules.lines.wrapped import wrap_width

HEAD = 256 * 1024  #: bytes


def head_first(portions: Iterator[bytes], size: int = HEAD) -> Iterator[bytes]:
    """The same bytes, their first portion being the beginning: ``size`` bytes, or all if there are fewer.

    What came before an error is still given before it.
    """
    held: list[bytes] = []
    missing = size
    broken: InputError | OSError | None = None
    try:
        while missing > 0 and (portion := next(portions, None)) is not None:
            held.append(portion)
            missing -= len(portion)
    except (InputError, OSError) as error:
        broken = error
    begun = b"".join(held)
    if begun:
        yield begun[:size]
    if begun[size:]:
        yield begun[size:]
    if broken is not None:
        raise broken
    yield from portions


def broken_at(head: bytes) -> int | None:
    """At how many characters a terminal broke the lines of a text that was copied from it.

    Such a text is short: a file that is longer than its head was written as it is.
    """
    return wrap_width(head) if len(head) < HEAD else None
