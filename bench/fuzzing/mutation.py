"""Generate inputs by splicing, nesting, repeating, and damaging real samples.

The same seed, target, and number produce the same bytes on every machine. Therefore, a failure can be
reproduced without a file, and an interrupted session can continue with the next number.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 64 * 1024  #: maximum size of an input in bytes; most inputs are much shorter
_USUAL = 4096

#: Tokens that often break parsers, regardless of the format.
TOKENS: tuple[bytes, ...] = (
    *(b"\0", b"\n", b"\r", b"\r\n", b"\t", b"\x0b", b"\x1c", b"\x85", b"\b", b"\x7f", b" ", b"\xa0"),
    *(b"\x1b[31m", b"\x1b[0m", b"\x1b]0;title\x07", b"\x1b[", b"\x1b", b"\x9b31m", b"\x1b[999999999A"),
    *(
        b"\xff\xfe",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
        b"\xe2\x80",
    ),
    *("\u202e", "\u2028", "\u200b", "\ufffd", "\U0001f525", "损失", "步", "٣", "²", "Ⅷ", "①", "İ", "ß", "ﬁ"),
    *(
        b"'",
        b'"',
        b"\\",
        b"`",
        b"<",
        b">",
        b"&",
        b"&amp;",
        b"%",
        b"%s",
        b"{}",
        b"{0}",
        b"{0.__class__}",
        b"$",
    ),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"(",
        b")",
        b":",
        b",",
        b"=",
        b"|",
        b"-",
        b"#",
        b"---",
        b"...",
        b"//",
        b"@",
        b"\\u0000",
    ),
    *(
        b"0",
        b"-1",
        b"1e999",
        b"-1e999",
        b"1e-999",
        b"nan",
        b"NaN",
        b"inf",
        b"-Infinity",
        b"0x10",
        b"1_0",
        b"00",
    ),
    *(b"9" * 20, b"9" * 400, b"9" * 5000, b"-9223372036854775809", b"18446744073709551616", b"2147483648"),
    *(b"null", b"true", b"false", b"None", b"True", b"[]", b"{}", b'""', b"\\ud800", b"\\x00", b"\\u"),
    *(b"0000-00-00T00:00:00Z", b"9999-12-31T23:59:60.999999999Z", b"2026-02-30T25:61:61+99:99"),
    *(b"1970-01-01 00:00:00,000", b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-12:00"),
)  # type: ignore[assignment]
TOKENS = tuple(item.encode() if isinstance(item, str) else item for item in TOKENS)

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBERS = (
    *(
        b"0",
        b"-0",
        b"-1",
        b"1",
        b"1e309",
        b"-1e309",
        b"1e-400",
        b"nan",
        b"-nan",
        b"inf",
        b"0.0",
        b".5",
        b"5.",
    ),
    *(b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"007"),
    *(
        b"9" * 30,
        b"9" * 310,
        b"9" * 4301,
        b"0" * 64,
        b"1" + b"0" * 400,
        "٣٤".encode(),
        "१".encode(),
        "²".encode(),
    ),
)
_PAIRS = (
    (b"[", b"]"),
    (b'{"a":', b"}"),
    (b"(", b")"),
    (b"{", b"}"),
    (b"'", b"'"),
    (b"- ", b""),
    (b"> ", b""),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400),
    *(
        "",
        "x",
        "\0",
        "\ud800",
        "nan",
        "9" * 5000,
        "a" * 300,
        "\n",
        "../../etc/passwd",
        "2026-01-01T00:00:00Z",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"a": {"a": {}}},
        [[[[[[[[]]]]]]]],
        ["x"] * 50,
        [1, "a", None],
        {"0": 0},
    ),
)
_NESTING = (10, 100, 500, 2000, 20_000)


class Mutator:
    """Generates inputs for a target by combining the target's samples and tokens with general tokens."""

    def __init__(
        self, samples: Sequence[bytes], tokens: Sequence[bytes] = (), *, json_lines: bool = False
    ) -> None:
        self.samples = list(samples) or [b""]
        self._tokens = (*tokens * max(1, len(TOKENS) // (2 * max(1, len(tokens)))), *TOKENS)
        self._structured = json_lines

    def make(self, chance: random.Random) -> bytes:
        """Return a random input."""
        kind = chance.random()
        if kind < 0.02:
            return chance.randbytes(chance.randrange(200))
        if kind < 0.06:
            return b"".join(chance.choice(self._tokens) for _ in range(chance.randrange(1, 40)))[:LONGEST]
        data = chance.choice(self.samples)
        most = LONGEST if chance.random() < 0.02 else _USUAL
        if len(data) > most:
            start = chance.randrange(len(data) - most) if chance.random() < 0.5 else 0
            data = data[start : start + most]
        if self._structured and kind < 0.6:
            data = self._with_other_values(data, chance)
            if chance.random() < 0.7:
                return data[:LONGEST]
        while True:
            data = chance.choice(_CHANGES)(self, data, chance)[:most]
            if chance.random() < 0.4:
                return data

    # ------------------------------------------------------------ changes

    def _splice(self, data: bytes, chance: random.Random) -> bytes:
        other = chance.choice(self.samples)
        at, begin = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
        return data[:at] + other[begin : begin + chance.choice((8, 80, 800, 8000))] + data[at:]

    def _insert(self, data: bytes, chance: random.Random) -> bytes:
        at = chance.randrange(len(data) + 1)
        return data[:at] + chance.choice(self._tokens) + data[at:]

    def _replace(self, data: bytes, chance: random.Random) -> bytes:
        at = chance.randrange(len(data) + 1)
        return data[:at] + chance.choice(self._tokens) + data[at + chance.randrange(8) :]

    def _repeat(self, data: bytes, chance: random.Random) -> bytes:
        if chance.random() < 0.5:
            unit = chance.choice(self._tokens)
        else:
            begin = chance.randrange(len(data) + 1)
            unit = data[begin : begin + chance.choice((1, 2, 4, 16, 80))]
        at = chance.randrange(len(data) + 1)
        return data[:at] + unit * chance.choice((2, 10, 100, 1000)) + data[at:]

    def _cut(self, data: bytes, chance: random.Random) -> bytes:
        at = chance.randrange(len(data) + 1)
        return data[:at] + data[at + chance.choice((1, 2, 10, 100, LONGEST)) :]

    def _flip(self, data: bytes, chance: random.Random) -> bytes:
        out = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            if out:
                out[chance.randrange(len(out))] = chance.randrange(256)
        return bytes(out)

    def _number(self, data: bytes, chance: random.Random) -> bytes:
        found = list(_NUMBER.finditer(data[:_USUAL]))
        if not found:
            return self._insert(data, chance)
        number = chance.choice(found)
        return data[: number.start()] + chance.choice(_NUMBERS) + data[number.end() :]

    def _nest(self, data: bytes, chance: random.Random) -> bytes:
        (begin, end), deep = chance.choice(_PAIRS), chance.choice(_NESTING)
        at = chance.randrange(len(data) + 1)
        core = data[at:] if chance.random() < 0.5 else b""
        return data[:at] + begin * deep + core + (end * deep if chance.random() < 0.7 else b"")

    def _lines(self, data: bytes, chance: random.Random) -> bytes:
        lines = data.split(b"\n")
        first, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        lines[first], lines[other] = lines[other], lines[first]
        if chance.random() < 0.5:
            lines.insert(first, lines[other])
        return b"\n".join(lines)

    def _with_other_values(self, data: bytes, chance: random.Random) -> bytes:
        """Return the input after changing up to four values in its JSON, or in one of its JSON lines."""
        lines = data.split(b"\n")
        at = chance.randrange(len(lines))
        for text, wrap in ((data, None), (lines[at], at)):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                continue
            for _ in range(chance.choice((1, 1, 2, 4))):
                value = _changed(value, chance)
            # Python also writes values that JSON does not allow, such as Infinity and single surrogates.
            made = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
            if wrap is None:
                return made
            lines[wrap] = made
            return b"\n".join(lines)
        return self._replace(data, chance)


_Change = Callable[[Mutator, bytes, random.Random], bytes]
_CHANGES: tuple[_Change, ...] = (
    *(Mutator._splice, Mutator._insert, Mutator._replace, Mutator._repeat, Mutator._cut),
    *(Mutator._flip, Mutator._number, Mutator._number, Mutator._nest, Mutator._lines, Mutator._insert),
)


def _changed(value: Any, chance: random.Random) -> Any:
    """Return the value with one of its parts replaced, removed, duplicated, or renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        how = chance.random()
        rest = {name: item for name, item in value.items() if name != key}
        if how < 0.1:
            return rest
        if how < 0.15:
            return {**rest, chance.choice(("", "x", "\ud800", key + "x", "9" * 50)): value[key]}
        return {**value, key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        if chance.random() < 0.1:
            return value[:at] + value[at : at + 1] * chance.choice((0, 2, 100)) + value[at + 1 :]
        return [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    return chance.choice(_VALUES)
