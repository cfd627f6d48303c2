"""Return the lines around a given line of an uploaded log, as they were printed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from msgspec import structs

from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import LogFile, from_stream
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.records import Line
from stallwatch_rules.text.controls import TERMINAL_CODES, without_controls
from stallwatch_rules.text.redact import LineMasker

_WIDEST = 400  # maximum number of characters of a line
_EXAMINED = 4096  # number of bytes of a chunk that are searched for null bytes


def lines_around(
    streams: Sequence[tuple[str, BinaryIO]],
    file: str,
    number: int,
    *,
    before: int = 6,
    after: int = 6,
    limits: Limits | None = None,
) -> str:
    """Return the lines `number - before` to `number + after` of a diagnosed file, with line `number` marked.

    Secrets are masked. If the file has no line `number`, the text is empty.
    """
    problems: list[InputProblem] = []
    for name, stream in streams:
        stream.seek(0)
        for log in from_stream(name, stream, limits=limits)[0]:
            if log.name == file:
                masker = LineMasker()
                # Also read the line before these lines, because it can be part of a private key.
                lines = [
                    structs.replace(line, text=masker(line.text))
                    for line in _read(log, problems, number, before + 1, after)
                ]
                return "\n".join(_drawn(line, number) for line in lines if line.number >= number - before)
    return ""


def _read(log: LogFile, problems: list[InputProblem], number: int, before: int, after: int) -> list[Line]:
    found: list[Line] = []
    reader = LineReader(log.name, log.rank)
    first = number - before
    skipped, chunks = _skipped(log.chunks(problems), first - 1)
    for chunk in chunks:
        found += [line for line in reader.feed(chunk) if first <= line.number + skipped <= number + after]
        if reader.lines + skipped > number + after:
            break
    else:
        found += [line for line in reader.finish() if line.number + skipped <= number + after]
    return [structs.replace(line, number=line.number + skipped) for line in found]


def _skipped(chunks: Iterator[bytes], most: int) -> tuple[int, Iterator[bytes]]:
    """Skip up to `most` lines quickly. Return the number of skipped lines and the remaining chunks.

    In encodings that use several bytes for a line break, no line is skipped.
    """
    count, rest = 0, b""
    for portion in chunks:
        chunk = rest + portion
        ends = chunk.count(b"\n")
        if b"\0" in chunk[:_EXAMINED] or count + ends > most or not ends:
            return count, itertools.chain((chunk,), chunks)
        count += ends
        rest = chunk[chunk.rindex(b"\n") + 1 :]
    return count, iter((rest,))


def _drawn(line: Line, number: int) -> str:
    mark = "▶" if line.number == number else " "
    text = without_controls(TERMINAL_CODES.sub("", line.text))
    return f"{mark} {line.number:>7,}  {text if len(text) <= _WIDEST else text[: _WIDEST - 1] + '…'}"
