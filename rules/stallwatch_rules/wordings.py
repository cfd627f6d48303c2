"""Whether a rule's text is still in the source of the package that prints it. Pure: files are read elsewhere.

A pattern's fixed text is cut into pieces (``literals``); a source's strings are templates, with ``GAP``
where a value goes. A piece is found where a template's own text covers most of it, in order: ``Function
SumBackward0 returned`` in ``"Function ", name, " returned"``.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from stallwatch_rules.literals import Branch, branches
from stallwatch_rules.page import EmittedBy, RulePage

GAP = "\0"  #: in a template: where a value is put in
LEAST = 6  #: characters of a piece that are worth looking for
ENOUGH = 16  #: characters that the pieces of one alternative need together, unless they are identifiers
COVERED = 0.6  #: share of a piece that a template's own text must cover
LEAST_PART = 5  #: characters of a template between two gaps that count

State = Literal["found", "missing", "skipped"]

_RAISED = re.compile(
    r"^(?:[\w.]+\.)?_?(?:[A-Z]\w*)?(?:Error|Exception|Warning|Exit|Interrupt|Timeout)\b:?\s*"
)
_CLASS = re.compile(r"\b[A-Z]\w+(?:Error|Exception)\b")
# What the interpreter or the linker says around a name; the package's source holds the name only.
_INTERPRETERS = re.compile(
    r"object has no attribute|has no attribute|is not defined|No module named|cannot import name"
    r"|torch\.Size\(\[|\{'|['\"][,:] ?['\"]?"  # values as Python writes them
    r"|returned non-zero exit status"
    r"|got an unexpected keyword argument|undefined symbol|got signal|NoneType|SignalException: Process"
)
_AROUND = " '\"`[](){}<>,:;=.*#|-\t"
_LEVEL = re.compile(r"^\W*(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\W*$")
_WORD = re.compile(r"[^\W\d_]{4,}")
_PLACEHOLDER = re.compile(r"\{[^{}\s]{0,40}\}|%[-+ #0-9.*]*[sdrfgixulp]+\b|%\([\w.]+\)[sdrf]")
COMPILED = (".cpp", ".cc", ".cu", ".h", ".hpp", ".cuh", ".c")


class Template(NamedTuple):
    """One string of a source file."""

    text: str  #: with ``GAP`` for what is put in
    line: int  #: 1-based; 0 in a compiled file


@dataclass
class Verified:
    """What is known of one rule's text in a package."""

    rule: str
    status: str  #: the page's
    state: State = "missing"
    pattern: str = ""  #: the one that was found, or the first
    file: str = ""
    line: int = 0
    reason: str = ""  #: why it was skipped


@dataclass
class _Piece:
    """A piece of fixed text that is looked for."""

    text: str
    lowered: str = field(init=False)
    anchor: str = field(init=False)  #: its longest word: what does not hold it needs no closer look
    phrases: Sequence[tuple[str, ...]] = field(init=False)  #: that word with a neighbour, each
    near: re.Pattern[str] = field(init=False)  #: that word beside a neighbour, as source breaks lines
    whole: bool = field(init=False)  #: that word is no part of a longer one, as it may be at the piece's ends
    place: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        self.lowered = self.text.lower()
        words = re.findall(r"\w+", self.lowered)
        inner = [w[0] for w in _WORD.finditer(self.lowered) if w.start() > 0 and w.end() < len(self.lowered)]
        self.whole = bool(inner)
        self.anchor = max(inner or _WORD.findall(self.lowered), key=len)
        at = next(number for number, word in enumerate(words) if self.anchor in word)
        self.phrases = list(pairwise(words[max(0, at - 1) : at + 2])) or [(self.anchor,)]
        self.near = re.compile("|".join(r"\W{1,80}".join(map(re.escape, phrase)) for phrase in self.phrases))


@dataclass
class _Wanted:
    """One alternative of a rule's pattern."""

    rule: str
    pattern: str
    pieces: list[_Piece]


class Search:
    """Looks for the texts of the rules that a package prints, in one source file after the other."""

    def __init__(self, pages: Iterable[RulePage], package: str, version: str = "") -> None:
        self.results: dict[str, Verified] = {}
        self._wanted: list[_Wanted] = []
        self._modules: dict[str, list[str]] = {}
        for page in sorted(pages, key=lambda page: page.id):
            emitted = [one for one in page.emitted_by if same_package(one.package, package)]
            if emitted and page.patterns and page.status != "retired":
                self._want(page, emitted, version)

    def _want(self, page: RulePage, emitted: Sequence[EmittedBy], version: str) -> None:
        result = self.results[page.id] = Verified(page.id, page.status, pattern=page.patterns[0])
        if version and not any(in_range(version, one.versions) for one in emitted):
            ranges = ", ".join(one.versions for one in emitted)
            result.state, result.reason = "skipped", f"it claims {ranges} only"
            return
        wanted = [
            _Wanted(page.id, pattern, [_Piece(piece) for piece in pieces])
            for pattern in page.patterns
            for branch in branches(pattern)
            if (pieces := pieces_of(branch))
        ]
        if not wanted:
            result.state, result.reason = "skipped", "its patterns hold no text that is long enough"
        self._modules[page.id] = [one.module for one in emitted if one.module]
        self._wanted += wanted

    @property
    def phrases(self) -> frozenset[tuple[str, ...]]:
        """One or two neighbouring words of each piece that is still looked for, in lower case."""
        return frozenset(phrase for _, piece in self._open() for phrase in piece.phrases)

    def may_be_in(self, text: str) -> bool:
        """Whether a source file, in lower case, may hold a piece: most hold none and need no parsing."""
        return any(piece.anchor in text and piece.near.search(text) for _, piece in self._open())

    def see(self, file: str, templates: Iterable[Template]) -> None:
        """Look through a file's strings."""
        by_word: dict[str, list[tuple[_Wanted, _Piece]]] = {}
        loose = []
        for one, piece in self._open():
            if piece.whole:
                by_word.setdefault(piece.anchor, []).append((one, piece))
            else:
                loose.append((one, piece))
        given = [(template, template.text.lower()) for template in templates]
        whole = "\n".join([lowered for _, lowered in given])
        loose = [pair for pair in loose if pair[1].anchor in whole]
        for template, lowered in given:
            near = [pair for word in by_word.keys() & set(_WORD.findall(lowered)) for pair in by_word[word]]
            near += [pair for pair in loose if pair[1].anchor in lowered]
            for one, piece in near:
                if piece.place is None and covers(lowered, piece.lowered):
                    piece.place = (file, template.line)
                    self._tell(one)

    def absent(self, compiled: str) -> None:
        """Say that the package at hand was built without a source file, such as ``ProcessGroupNCCL.cpp``."""
        for rule, modules in self._modules.items():
            result = self.results[rule]
            names = [module.rpartition("/")[2] for module in modules]
            if result.state == "missing" and names and all(name == compiled for name in names):
                result.state, result.reason = "skipped", f"this build is without {compiled}"

    def named(self, path: str) -> bool:
        """Whether a rule names this file as its text's origin: such files are the first to look into."""
        return any(
            path == module or path.endswith("/" + module.removeprefix("/"))
            for modules in self._modules.values()
            for module in modules
        )

    @property
    def compiled(self) -> frozenset[str]:
        """The compiled source files that the rules still missing name as their origin."""
        return frozenset(
            module.rpartition("/")[2]
            for rule, modules in self._modules.items()
            if self.results[rule].state == "missing"
            for module in modules
            if module.endswith(COMPILED)
        )

    def _open(self) -> list[tuple[_Wanted, _Piece]]:
        return [
            (one, piece)
            for one in self._wanted
            if self.results[one.rule].state == "missing"
            for piece in one.pieces
            if piece.place is None
        ]

    def _tell(self, one: _Wanted) -> None:
        result = self.results[one.rule]
        if result.state == "missing" and all(piece.place is not None for piece in one.pieces):
            longest = max(one.pieces, key=lambda piece: len(piece.text))
            assert longest.place is not None
            result.state, result.pattern = "found", one.pattern
            result.file, result.line = longest.place


def pieces_of(branch: Branch) -> list[str]:
    """The pieces that must be in the source: without what Python and loggers add to a message."""
    cut = [part for piece in branch for part in _INTERPRETERS.sub(GAP, _RAISED.sub("", piece)).split(GAP)]
    pieces = [part.strip(_AROUND) for part in cut]
    long = [piece for piece in pieces if len(piece) >= LEAST and _WORD.search(piece)]
    long = [piece for piece in dict.fromkeys(long) if not _LEVEL.match(piece)]
    enough = sum(map(len, long)) >= ENOUGH or any("_" in piece for piece in long)
    if long and enough:
        return long
    # Nothing but the exception's name: a class that is not Python's own tells as much.
    names = [name for piece in branch for name in _CLASS.findall(piece) if not hasattr(builtins, name)]
    return list(dict.fromkeys(names))


def covers(template: str, piece: str) -> bool:
    """Whether a string with values put in could hold the piece: its own text makes up most of it."""
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
        elif length := _overlap(rest, part):  # or ends within it
            covered += length
            break
    return covered >= COVERED * len(piece)


def _overlap(left: str, right: str) -> int:
    """How many characters the end of one text and the beginning of the other share."""
    if right[:LEAST_PART] not in left:
        return 0
    for length in range(min(len(left), len(right)), LEAST_PART - 1, -1):
        if left.endswith(right[:length]):
            return length
    return 0


def same_package(one: str, other: str) -> bool:
    """Whether two names are one package's: ``torch-npu`` and ``torch_npu``."""
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def in_range(version: str, versions: str) -> bool:
    """Whether a version is in a range; where either cannot be read, it is."""
    try:
        return SpecifierSet(versions).contains(Version(version).base_version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
