"""From a rule's regular expression, extract the literal text that a program's source must contain."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from stallwatch_rules.matching.literal_index import sre, sre_parse

MAX_BRANCHES = 64  #: maximum number of alternatives of a pattern

Branch = tuple[str, ...]
"""One way to match: the pieces of fixed text that must come in this order, with anything between them."""

_GAP = None  # a variable part in a sequence of characters


def branches(pattern: str) -> list[Branch]:
    """Return all alternatives of a pattern. Each alternative is a list of pieces of fixed text.

    The list is empty for a pattern that Python's ``re`` cannot parse (google-re2 has a few more features).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except Exception:  # any error of the parser
        return []
    found = []
    for sequence in _sequences(parsed):
        pieces = _pieces(sequence)
        if pieces and pieces not in found:
            found.append(pieces)
    return found


def _sequences(parsed: Iterable[Any]) -> list[list[str | None]]:
    """Return all alternatives of a parsed expression, as characters and gaps between them."""
    ways: list[list[str | None]] = [[]]
    for operation, argument in parsed:
        options = _options(operation, argument)
        ways = [way + option for way in ways for option in options][:MAX_BRANCHES]
    return ways


def _options(operation: Any, argument: Any) -> list[list[str | None]]:
    if operation is sre.LITERAL:
        return [[chr(argument)]]
    if operation is sre.SUBPATTERN:
        return _sequences(argument[-1])
    if operation is sre.BRANCH:
        return [way for branch in argument[1] for way in _sequences(branch)]
    if operation is sre.IN and len(argument) == 1 and argument[0][0] is sre.LITERAL:
        return [[chr(argument[0][1])]]
    if operation is sre.IN and all(kind is sre.LITERAL for kind, _ in argument) and len(argument) == 2:
        return [[chr(character)] for _, character in argument]  # for example, [Cc]
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, inner = argument
        ways = _sequences(inner)
        if (least, most) == (1, 1):
            return ways
        if least == 0:
            return [[_GAP]] if most > 1 or any(_GAP in way for way in ways) else [[], *ways]
        return [[_GAP, *way, _GAP] for way in ways]
    if operation is sre.AT:
        return [[]]
    return [[_GAP]]


def _pieces(way: Iterable[str | None]) -> Branch:
    pieces: list[str] = [""]
    for character in way:
        if character is _GAP:
            pieces.append("")
        else:
            pieces[-1] += character
    return tuple(piece for piece in pieces if piece.strip())
