"""The strings that a source file holds, with gaps where values are put in: Python, C++ and compiled files."""

from __future__ import annotations

import ast
import mmap
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from stallwatch_rules.patterns import compile_re2
from stallwatch_rules.wordings import COMPILED, GAP, Template

BINARY = (".so", ".dylib", ".pyd")
SUFFIXES = (".py", *COMPILED, *BINARY)
MAX_FILE = 20 << 20  #: of source; a generated giant holds no messages
MAX_STRING = 2000  #: bytes of a compiled string that are looked at
BLOCK = 32 << 20  #: bytes of a compiled file that are looked at in one go

Phrase = tuple[str, ...]
"""One or two neighbouring words, in lower case."""

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STATEMENT_ENDS = re.compile(r"[;{}]")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def strings_in(path: Path, phrases: Collection[Phrase], worth: Callable[[str], bool]) -> Iterator[Template]:
    """The strings of a file: of a compiled one those around a phrase, of a source file all.

    ``worth`` tells from a source file's text in lower case whether it is to be parsed at all.
    """
    if path.name.endswith(BINARY) or ".so." in path.name:
        yield from binary_strings(path, phrases)
        return
    if path.stat().st_size > MAX_FILE:
        return
    text = path.read_bytes().decode("utf-8", "replace")
    if worth(text.lower()):
        yield from (python_strings(text) if path.suffix == ".py" else c_strings(text))


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


def binary_strings(path: Path, phrases: Collection[Phrase]) -> Iterator[Template]:
    """A compiled file's: what stands between two NUL bytes around one of the phrases."""
    if not phrases or not path.stat().st_size:
        return
    told = (r"[^0-9A-Za-z_]{1,3}".join(map(re.escape, phrase)) for phrase in sorted(phrases))
    expression = compile_re2("(?i)" + "|".join(told))
    with path.open("rb") as file:
        rest = b""
        while block := file.read(BLOCK):
            data = rest + block
            for found in expression.finditer(data):
                start = data.rfind(b"\0", max(0, found.start() - MAX_STRING), found.start()) + 1
                end = data.find(b"\0", found.end(), found.end() + MAX_STRING)
                if end > 0:
                    yield Template(data[start:end].decode("utf-8", "replace"), 0)
            rest = data[-2 * MAX_STRING :]


def holds(path: Path, text: str) -> bool:
    """Whether a compiled file holds this text."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text.encode()) >= 0
