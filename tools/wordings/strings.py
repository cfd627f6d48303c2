"""Extract the strings from Python, C++, and compiled files, with gaps for inserted values."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterator

from wordings.files import SourceFile
from wordings.phrases import Phrases
from wordings.pieces import GAP
from wordings.search import Template

MAX_STRING = 2000  #: maximum length of a compiled string in bytes
BLOCK = 32 << 20  #: number of bytes of a compiled file that are searched at a time

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STATEMENT_ENDS = re.compile(r"[;{}]")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def strings_in(file: SourceFile, phrases: Phrases, worth: Callable[[str], bool]) -> Iterator[Template]:
    """Yield all strings in a source file. For a compiled file, yield only the strings around phrases.

    ``worth`` decides from the text of a source file whether the file needs parsing.
    """
    if file.binary:
        yield from binary_strings(file, phrases)
        return
    text = file.text()
    if worth(text):
        yield from (python_strings(text) if file.name.endswith(".py") else c_strings(text))


def python_strings(text: str) -> Iterator[Template]:
    """Yield the strings in Python source. Adjacent literals are joined, and values in f-strings are gaps."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    inner: set[int] = set()
    names: set[str] = set()
    for node in ast.walk(tree):  # outer nodes come first, so a sum is visited before its parts
        if id(node) in inner:
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node.value))  # a docstring is not printed
        elif isinstance(node, ast.BinOp | ast.JoinedStr):
            joined = _joined(node)
            if joined is not None:
                inner.update(
                    id(part) for part in ast.walk(node) if isinstance(part, ast.BinOp | ast.JoinedStr)
                )
                yield Template(joined, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Template(node.value, node.lineno)
        elif (name := _name(node)) and name not in names:
            names.add(name)
            yield Template(name, getattr(node, "lineno", 0), name=True)


def _name(node: ast.AST) -> str | None:
    """Return a name that the interpreter prints: an attribute, or an exception of the package."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.ClassDef):
        return node.name
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return raised.id if isinstance(raised, ast.Name) else None
    return None


def _joined(node: ast.expr) -> str | None:
    """Return a string with its parts joined, or ``None`` if the node can be something other than a string."""
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
    """Yield the strings in C++ source. The literals of a statement form one string with gaps."""
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


def binary_strings(file: SourceFile, phrases: Phrases) -> Iterator[Template]:
    """Yield each distinct string that contains a phrase in a compiled file. NUL bytes end the strings."""
    given: set[bytes] = set()
    for data in _blocks(file, 2 * MAX_STRING):
        last_end = 0  # end of the last string
        for at in phrases.ends(data):
            if at <= last_end:
                continue
            start = data.rfind(b"\0", max(0, at - MAX_STRING), at) + 1
            end = data.find(b"\0", at, at + MAX_STRING)
            if end < 0 or (not start and at > MAX_STRING):
                continue  # too long for a message
            last_end = end
            text = data[start:end]
            if text not in given:
                given.add(text)
                yield Template(text.decode("utf-8", "replace"), 0)


def held(file: SourceFile, texts: Collection[str]) -> set[str]:
    """Return those of the `texts` that a compiled file contains."""
    wanted = {text.encode(): text for text in texts}
    found: set[bytes] = set()
    for data in _blocks(file, max(map(len, wanted), default=0)):
        found.update(text for text in wanted.keys() - found if text in data)
    return {wanted[text] for text in found}


def _blocks(file: SourceFile, overlap: int) -> Iterator[bytes]:
    """Yield the file in large blocks. Each block starts with the end of the previous block."""
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
