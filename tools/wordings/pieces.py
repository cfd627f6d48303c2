"""Split a pattern's fixed text into pieces and search for these pieces in templates of source code.

A piece is found if the fixed text of a template covers most of the piece, in order. For example, ``Function
SumBackward0 returned`` is found in ``"Function ", name, " returned"``. All functions are pure.
"""

from __future__ import annotations

import builtins

from stallwatch_rules.text.lazy import lazy
from wordings.branches import Branch

GAP = "\0"  #: mark for an inserted value in a template
LEAST = 6  #: minimum number of characters of a literal that is searched for
ENOUGH = 16  #: minimum length of one piece of each alternative, to exclude chance matches
ENOUGH_NAME = 12  #: minimum length of an identifier (``ds_active_sub_modules``) or of an exception's name
COVERED = 0.6  #: share of a piece that a template's fixed text must cover (at least ENOUGH characters)
LEAST_PART = 5  #: minimum length of a template's part between two gaps

_RAISED = lazy(r"^(?:[\w.]+\.)?_?(?:[A-Z]\w*)?(?:Error|Exception|Warning|Exit|Interrupt|Timeout)\b:?\s*")
_CLASS = lazy(r"\b[A-Z]\w+(?:Error|Exception)\b")
# Text that the interpreter or the linker prints around a name. The package's source contains only the name.
_INTERPRETERS = lazy(
    r"object has no attribute|has no attribute|is not defined|No module named|cannot import name"
    r"|torch\.Size\(\[|\{'|['\"][,:] ?['\"]?"  # values as Python prints them
    r"|returned non-zero exit status"
    r"|got an unexpected keyword argument|undefined symbol|got signal|NoneType|SignalException: Process"
    r"|\bFunction \w+Backward"  # autograd inserts the node's name
)
_AROUND = " '\"`[](){}<>,:;=.*#|-\t"
_LEVEL = lazy(r"^\W*(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\W*$")
_NAME = lazy(r"\w*[^\W_]_[^\W_]\w*")
WORD = lazy(r"[^\W\d_]{4,}")
_PLACEHOLDER = lazy(r"\{[^{}\s]{0,40}\}|%[-+ #0-9.*]*[sdrfgixulp]+\b|%\([\w.]+\)[sdrf]")


def pieces_of(branch: Branch) -> list[str]:
    """Return the pieces that the source must contain, without the text that Python and loggers add."""
    cut = [part for piece in branch for part in _INTERPRETERS.sub(GAP, _RAISED.sub("", piece)).split(GAP)]
    pieces = [part.strip(_AROUND) for part in cut]
    long = [piece for piece in pieces if len(piece) >= LEAST and WORD.search(piece)]
    long = [piece for piece in dict.fromkeys(long) if not _LEVEL.match(piece)]
    if any(map(is_specific, long)):
        return long
    # Only the exception's name is left. A class that is not built into Python is specific enough.
    names = [name for piece in branch for name in _CLASS.findall(piece) if not hasattr(builtins, name)]
    return [name for name in dict.fromkeys(names) if len(name) >= ENOUGH_NAME]


def is_specific(piece: str) -> bool:
    """Return True if a piece is too long to occur by chance. Names need fewer characters than other text."""
    name = _NAME.fullmatch(piece) or _CLASS.fullmatch(piece)
    return len(piece) >= (ENOUGH_NAME if name else ENOUGH)


def covers(template: str, piece: str) -> bool:
    """Return True if a template can produce the piece, because its fixed text covers most of the piece."""
    if piece in template:
        return True
    parts = [part for part in _PLACEHOLDER.sub(GAP, template).split(GAP) if len(part.strip()) >= LEAST_PART]
    position = covered = 0
    for part in parts:
        rest = piece[position:]
        at = rest.find(part)
        if at >= 0:
            covered += len(part)
            position += at + len(part)
        elif not position and (length := _overlap(part, rest)):  # the piece begins within this part
            covered = position = length
        elif length := _overlap(rest, part):  # the piece ends within this part
            covered += length
            break
    return covered >= max(COVERED * len(piece), min(ENOUGH, len(piece)))


def _overlap(left: str, right: str) -> int:
    """Return the number of characters shared by the end of `left` and the beginning of `right`."""
    if right[:LEAST_PART] not in left:
        return 0
    for length in range(min(len(left), len(right)), LEAST_PART - 1, -1):
        if left.endswith(right[:length]):
            return length
    return 0
