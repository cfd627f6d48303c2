"""The lines around a place in an uploaded log, as they were printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from stallwatch_exporter.inputs import InputProblem
from stallwatch_exporter.logfiles import LogFile, from_stream
from stallwatch_rules.lines import LineReader
from stallwatch_rules.records import Line
from stallwatch_rules.redact import redact

_WIDEST = 400


def around(
    streams: Sequence[tuple[str, BinaryIO]], file: str, number: int, *, before: int = 6, after: int = 6
) -> str:
    """The lines `number - before` to `number + after` of the file that a diagnosis names, its line marked.

    Secrets are masked. Empty where there is no such line.
    """
    problems: list[InputProblem] = []
    for name, stream in streams:
        stream.seek(0)
        for log in from_stream(name, stream)[0]:
            if log.name == file:
                return "\n".join(_drawn(line, number) for line in _read(log, problems, number, before, after))
    return ""


def _read(log: LogFile, problems: list[InputProblem], number: int, before: int, after: int) -> list[Line]:
    found: list[Line] = []
    reader = LineReader(log.name, log.rank)
    for chunk in log.chunks(problems):
        found += [line for line in reader.feed(chunk) if number - before <= line.number <= number + after]
        if reader.lines > number + after:
            return found
    return found + [line for line in reader.finish() if line.number <= number + after]


def _drawn(line: Line, number: int) -> str:
    mark = "▶" if line.number == number else " "
    text = redact(line.text)
    return f"{mark} {line.number:>7,}  {text if len(text) <= _WIDEST else text[: _WIDEST - 1] + '…'}"
