"""The strings that a source file holds, with gaps where values are put in: Python, C++ and compiled files."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Iterator

from wordings.files import SourceFile
from wordings.phrases import Phrases
from wordings.pieces import GAP
from wordings.search import Template

MAX_STRING = 2000  #: bytes of a compiled string that are looked at
BLOCK = 32 << 20  #: bytes of a compiled file that are looked at in one go

_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STATEMENT_ENDS = re.compile(r"[;{}]")
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}


def strings_in(file: SourceFile, phrases: Phrases, worth: Callable[[str], bool]) -> Iterator[Template]:
    """The strings of a file: of a compiled one those around a phrase, of a source file all.

    ``worth`` tells from a source file's text whether it is to be parsed at all.
    """
    if file.binary:
        yield from binary_strings(file, phrases)
        return
    text = file.text()
    if worth(text):
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
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            inner.update(id(part) for part in ast.walk(node.value))  # a docstring prints nothing
        elif isinstance(node, ast.BinOp | ast.JoinedStr):
            told = _joined(node)
            if told is not None:
                inner.update(
                    id(part) for part in ast.walk(node) if isinstance(part, ast.BinOp | ast.JoinedStr)
                )
                yield Template(told, node.lineno)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Template(node.value, node.lineno)
        elif (name := _name(node)) and name not in names:
            names.add(name)
            yield Template(name, getattr(node, "lineno", 0), name=True)


def _name(node: ast.AST) -> str | None:
    """What the interpreter prints: an attribute that may be missing, an exception of the package's own."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.ClassDef):
        return node.name
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return raised.id if isinstance(raised, ast.Name) else None
    return None


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


def binary_strings(file: SourceFile, phrases: Phrases) -> Iterator[Template]:
    """A compiled file's, each once: what stands between two NUL bytes around one of the phrases."""
    given: set[bytes] = set()
    for data in _blocks(file, 2 * MAX_STRING):
        told = 0  # where the last string ended
        for at in phrases.ends(data):
            if at <= told:
                continue
            start = data.rfind(b"\0", max(0, at - MAX_STRING), at) + 1
            end = data.find(b"\0", at, at + MAX_STRING)
            if end < 0 or (not start and at > MAX_STRING):
                continue  # too long for a message
            told = end
            text = data[start:end]
            if text not in given:
                given.add(text)
                yield Template(text.decode("utf-8", "replace"), 0)


def held(file: SourceFile, texts: Collection[str]) -> set[str]:
    """Those of the texts that a compiled file holds."""
    wanted = {text.encode(): text for text in texts}
    found: set[bytes] = set()
    for data in _blocks(file, max(map(len, wanted), default=0)):
        found.update(text for text in wanted.keys() - found if text in data)
    return {wanted[text] for text in found}


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
