"""Repeat parts of inputs and look for parsers whose running time grows faster than the input size.

An input of four times the size is allowed to take four times as long, but not eight times as long. The
repeated units are tokens and lines of a parser's samples, pairs of a token or line and another token, and
the attacks on Stallwatch's regular expressions (``patterns``). The lines are repeated both as many lines
and within a single long line.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from fuzzing import patterns
from fuzzing.mutation import TOKENS
from fuzzing.targets import Target, seconds_for

_SIZES = (16_000, 64_000)
_FASTER = 8.0
_FLOOR = 0.02  #: minimum number of seconds for the longer input; shorter times are not compared
_LINES = 60  # number of sample lines that are repeated
_PAIRED = 120
_NESTED = (
    b"[",
    b'{"a":',
    b"(",
    b"- ",
    b"a: {",
    b"'",
    b'"',
    b"\\",
    b"  ",
    b"if x:\n ",
    b"-",
    b"not ",
    b"a.",
    b"a=",
    b"lambda:",
)


def units(target: Target) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the prefix, the repeated unit, and the suffix of each input."""
    chance = random.Random(target.name)
    tokens = [*target.tokens, *TOKENS]
    lines = [line for sample in target.samples() for line in sample.split(b"\n") if 0 < len(line) < 200]
    some = chance.sample(lines, min(_LINES, len(lines)))
    for token in (*tokens, *_NESTED, *some):
        yield b"", token, b""
        if token in some:
            yield b"", token + b"\n", b""
            yield b"", token + b"\r", b"\n"
    for _ in range(_PAIRED):
        example, other = chance.choice([*tokens, *some]), chance.choice(tokens)
        yield b"", example + other, chance.choice((b"", b"\n", b"!"))
    # JSON and similar formats contain no text that the patterns search.
    if not target.json:
        for pattern in patterns.every_pattern():
            text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
            for example in patterns.texts(text, pattern.flags if isinstance(pattern.pattern, str) else 0)[
                ::4
            ]:
                yield tuple(part.encode("utf-8", "replace") for part in example)  # type: ignore[misc]


def stretched(unit: tuple[bytes, bytes, bytes], size: int) -> bytes:
    """Repeat the unit until the input has about `size` bytes."""
    before, middle, end = unit
    return before + middle * max(1, size // len(middle)) + end


def slow(
    target: Target, unit: tuple[bytes, bytes, bytes], sizes: Sequence[int] = _SIZES
) -> tuple[float, float] | None:
    """Return the growth factor and the time for the longer input, or ``None`` if the growth is normal."""
    small, large = (stretched(unit, size) for size in sizes)
    took = seconds_for(target, large)
    if took < _FLOOR:
        return None
    for _ in range(3):  # repeat the comparison, because the machine can be busy or a cache can be cold
        before, took = max(seconds_for(target, small), 1e-4), min(took, seconds_for(target, large))
        if took < _FLOOR or took / before < _FASTER * (sizes[1] / sizes[0]) / 4:
            return None
    return took / before, took


def search(targets: Sequence[Target], report: Callable[[str], None]) -> int:
    """Repeat all units of all targets and report each parser whose time grows faster than the input size."""
    found = 0
    for target in targets:
        count, worst, seen = 0, 0.0, 0
        for unit in dict.fromkeys(units(target)):
            count += 1
            if not unit[1] or (slowed := slow(target, unit)) is None:
                continue
            found, seen, worst = found + 1, seen + 1, max(worst, slowed[1])
            if seen <= 8:
                report(f"{target.name}: ×{slowed[0]:.0f}, {slowed[1]:.2f} s for 64 kB: {unit!r}"[:300])
        report(
            f"{target.name}: for {seen} of {count} inputs, the time grows faster than the size"
            + (f"; the longest time is {worst:.2f} s" if seen else "")
        )
    return found
