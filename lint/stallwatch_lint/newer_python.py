"""Recognize syntax from a later Python version in a script that this Python version cannot parse.

The recognized syntax is from "What's New in Python" 3.11 (PEP 646, PEP 654, and nested asynchronous
comprehensions), 3.12 (PEP 695 and PEP 701), 3.13 (PEP 696), and 3.14 (PEP 750 and PEP 758).
"""

from __future__ import annotations

import re
import sys

_F_STRING = r"""\b(?:[fF][rR]?|[rR][fF])(?P<quote>["']).*\{"""
# Matches any line because the parser reports only the line where the comprehension begins.
_ASYNCHRONOUS = ""
_INSIDE = r"(?:[^\[\]]|\[[^\[\]]*\])*"  # the content of brackets, with up to one nested level

#: For each form of syntax: the release that added it, a pattern that matches its line, and its name. In
#: ``except E, e:`` (Python 2), the second name is a variable, which is in lowercase by convention.
_NEWER: tuple[tuple[tuple[int, int], re.Pattern[str], str], ...] = (
    ((3, 11), re.compile(r"^\s*except\s*\*"), "except*"),
    ((3, 11), re.compile(rf"(?<=[\w\])])\[(?:{_INSIDE},)?\s*\*\s*[\w(]"), "x[*a]"),
    ((3, 11), re.compile(r"\*\s*\w+\s*:\s*\*\s*[\w(]"), "*args: *Ts"),
    ((3, 11), re.compile(_ASYNCHRONOUS), "[[… async for …] for …]"),
    ((3, 13), re.compile(rf"^\s*(?:async\s+)?(?:def|class|type)\s+\w+\s*\[{_INSIDE}="), "class C[T = int]"),
    ((3, 12), re.compile(r"^\s*type\s+\w+\s*(?:\[.*\])?\s*="), "type X = …"),
    ((3, 12), re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+\w+\s*\["), "def f[T] / class C[T]"),
    ((3, 12), re.compile(_F_STRING), 'f"{d["key"]}"'),
    ((3, 14), re.compile(r"""(?<!\w)(?:[tT][rR]?|[rR][tT])["']"""), 't"…"'),
    ((3, 14), re.compile(r"^\s*except\s+[\w.]+\s*,\s*[\w.]*[A-Z]"), "except A, B:"),
)
#: Beginnings of the error messages that the parsers of Python 3.10 and 3.11 print, by form of syntax.
_REASONS = {
    _F_STRING: ("f-string", "unterminated", "unexpected character after line"),
    _ASYNCHRONOUS: ("asynchronous comprehension outside of an asynchronous function",),
}


class NewerPython(Exception):
    """Raised if a script uses syntax from a later Python version. The message names that version."""

    def __init__(self, file: str, line: int | None, form: str, since: str) -> None:
        this_version = ".".join(map(str, sys.version_info[:2]))
        super().__init__(
            f"{file}:{line}: {form} requires Python {since} or later, but Stallwatch runs on Python"
            f" {this_version}; to check this script, install Stallwatch for Python {since} or later"
        )


def newer_syntax(
    text: str, line: int | None, reason: str, version: tuple[int, int] = sys.version_info[:2]
) -> tuple[str, str] | None:
    """Return the syntax that Python `version` cannot parse and the Python version that added this syntax.

    Return ``None`` if no known syntax explains the error. `reason` is the parser's error message.
    """
    lines = text.splitlines()
    if line is None or not 0 < line <= len(lines):
        return None
    for since, form, name in _NEWER:
        if version >= since or not form.search(lines[line - 1]):
            continue
        if not reason.startswith(_REASONS.get(form.pattern, ("",))):
            continue
        return name, f"{since[0]}.{since[1]}"
    return None
