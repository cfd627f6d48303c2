"""The strings that a source file holds, with gaps where values are put in: Python, C++ and compiled files."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterator

from stallwatch.source_files import SourceFile
from stallwatch_rules.patterns import compile_re2
from stallwatch_rules.wordings import GAP, Template

MAX_STRING = 2000  #: bytes of a compiled string that are looked at
BLOCK = 32 << 20  #: bytes of a compiled file that are looked at in one go

Phrase = tuple[str, ...]
"""One or two neighbouring words, in lower case."""

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STATEMENT_ENDS = re.compile(r"[;{}]")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def strings_in(
    file: SourceFile, phrases: Collection[Phrase], worth: Callable[[str], bool]
) -> Iterator[Template]:
    """The strings of a file: of a compiled one those around a phrase, of a source file all.

    ``worth`` tells from a source file's text in lower case whether it is to be parsed at all.
    """
    if file.binary:
        yield from binary_strings(file, phrases)
        return
    text = file.text()
    if worth(text.lower()):
        yield from (python_strings(text) if file.name.endswith(".py") else c_strings(text))


def python_strings(text: str) -> Iterator[Template]:
    """Python's: neighbouring pieces are one string already; values in f-strings are gaps."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    inner: set[int] = set()
    names: set[str] = set()
    for node in ast.walk(tree):  # from the outside in, so that the parts of a sum are seen after it
        if id(node) in inner:
            continue
        if isinstance(node, ast.BinOp | ast.JoinedStr):
            told = _joined(node)
            if told is not None:
                inner.update(
                    id(part) for part in ast.walk(node) if isinstance(part, ast.BinOp | ast.JoinedStr)
                )
                yield Template(told, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Template(node.value, node.lineno)
        elif isinstance(node, ast.Attribute) and node.attr not in names:
            names.add(node.attr)  # what the interpreter prints of a missing one
            yield Template(node.attr, node.lineno)


def _joined(node: ast.expr) -> str | None:
    """A string that is put together; ``None`` where it is no string for certain."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(
            (_joined(part) or GAP) if isinstance(part, ast.Constant) else GAP for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _joined(node.left), _joined(node.right)
        if left is None and right is None:
            return None
        return (GAP if left is None else left) + (GAP if right is None else right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _joined(node.left)
    return None


def c_strings(text: str) -> Iterator[Template]:
    """C++'s: literals of one statement are one string, with gaps for what stands between them."""
    parts: list[str] = []
    line, seen, end = 1, 0, 0
    for found in _LITERAL.finditer(text):
        between = text[end : found.start()]
        if parts and (_STATEMENT_ENDS.search(between) or len(between) > 300):
            yield Template("".join(parts), line)
            parts = []
        if parts:
            parts.append("" if not between.strip() else GAP)
        else:
            line = (
                1 + text.count("\n", 0, found.start())
                if seen == 0
                else line + text.count("\n", seen, found.start())
            )
            seen = found.start()
        parts.append(re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), found[1]))
        end = found.end()
    if parts:
        yield Template("".join(parts), line)


def binary_strings(file: SourceFile, phrases: Collection[Phrase]) -> Iterator[Template]:
    """A compiled file's: what stands between two NUL bytes around one of the phrases."""
    if not phrases:
        return
    told = (r"[^0-9A-Za-z_]{1,3}".join(map(re.escape, phrase)) for phrase in sorted(phrases))
    expression = compile_re2("(?i)" + "|".join(told))
    for data in _blocks(file, 2 * MAX_STRING):
        for found in expression.finditer(data):
            start = data.rfind(b"\0", max(0, found.start() - MAX_STRING), found.start()) + 1
            end = data.find(b"\0", found.end(), found.end() + MAX_STRING)
            if end > 0:
                yield Template(data[start:end].decode("utf-8", "replace"), 0)


def holds(file: SourceFile, text: str) -> bool:
    """Whether a compiled file holds this text."""
    wanted = text.encode()
    return any(wanted in data for data in _blocks(file, len(wanted)))


def _blocks(file: SourceFile, overlap: int) -> Iterator[bytes]:
    """The file in pieces that are large, and begin with the end of the one before."""
    held: list[bytes] = []
    size = 0
    for chunk in file.chunks():
        held.append(chunk)
        size += len(chunk)
        if size >= BLOCK:
            block = b"".join(held)
            yield block
            held, size = [block[-overlap:]], 0
    yield b"".join(held)
