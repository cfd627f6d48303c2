"""Search a package's source for the text of the rules that name the package. No file is read here.

The fixed text of a pattern is split into pieces (``pieces``). The strings of the source are templates, in
which ``GAP`` replaces each inserted value. All specific pieces of an alternative must be near each other in
one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stallwatch_rules.pages.page import EmittedBy, RulePage
from wordings.branches import branches
from wordings.phrases import Phrase, Phrases, rare_phrases
from wordings.pieces import WORD, covers, is_specific, pieces_of

NEAR = 20  #: maximum number of lines between the pieces of one message in a source file
_AROUND_PHRASE = 300  # number of bytes before and after a phrase that can contain the rest of a message

State = Literal["found", "missing", "skipped"]

COMPILED = (".cpp", ".cc", ".cu", ".h", ".hpp", ".cuh", ".c")


class Template(NamedTuple):
    """A string in a source file, with gaps for inserted values."""

    text: str  #: text with ``GAP`` for inserted values
    line: int  #: line number, counted from 1; 0 in a compiled file
    name: bool = False  #: True for an identifier of the source, which is not printed text


@dataclass
class Verified:
    """The result of searching a package for the text of one rule."""

    rule: str
    status: str  #: status of the rule page
    state: State = "missing"
    pattern: str = ""  #: the found pattern, or the first pattern
    file: str = ""
    line: int = 0
    reason: str = ""  #: why the rule was skipped


@dataclass
class _Piece:
    """A piece of fixed text to search for, with its search keys."""

    text: str
    lowered: str = field(init=False)
    anchor: str = field(init=False)  #: the piece's longest word; strings without it are skipped
    #: Source that prints the piece contains one of these phrases.
    phrases: Sequence[Phrase] = field(init=False)
    words: Sequence[bytes] = field(init=False)
    is_specific: bool = field(init=False)  #: True if the piece is too long for a chance match

    def __post_init__(self) -> None:
        self.lowered = self.text.lower()
        self.is_specific = is_specific(self.text)
        words = re.findall(r"\w+", self.lowered)
        self.phrases = rare_phrases(words)
        self.words = [word.encode() for word in words]
        inner = [w[0] for w in WORD.finditer(self.lowered) if w.start() > 0 and w.end() < len(self.lowered)]
        self.anchor = max(inner or WORD.findall(self.lowered), key=len)

    def may_be_in(self, around: bytes) -> bool:
        """Return True if the text around a phrase contains most words of the piece.

        This test is weaker than ``COVERED``.
        """
        held = sum(len(word) for word in self.words if word in around)
        return 2 * held >= sum(map(len, self.words))


@dataclass
class _Wanted:
    """One alternative of a rule's pattern, with its pieces."""

    rule: str
    pattern: str
    pieces: list[_Piece]


class Search:
    """A search in source files for the text of the rules that name a package."""

    def __init__(self, pages: Iterable[RulePage], package: str, version: str = "") -> None:
        self.results: dict[str, Verified] = {}
        self._wanted: list[_Wanted] = []
        self._pieces: dict[str, _Piece] = {}
        self._vague: set[str] = set()  # rules that name several packages and have only short text
        self._modules: dict[str, list[str]] = {}
        for page in sorted(pages, key=lambda page: page.id):
            emitted = [emitter for emitter in page.emitted_by if same_package(emitter.package, package)]
            if emitted and page.patterns and page.status != "retired":
                self._want(page, emitted, version)
        self._by_first: dict[int, list[int]] = {}  # alternatives, by the ID of their first specific piece
        for number, alternative in enumerate(self._wanted):
            first = next(id(piece) for piece in alternative.pieces if piece.is_specific)
            self._by_first.setdefault(first, []).append(number)
        self._owners: dict[Phrase, list[_Piece]] = {}
        for piece in self._pieces.values():
            for phrase in piece.phrases if piece.is_specific else ():
                self._owners.setdefault(phrase, []).append(piece)
        self.phrases = Phrases(sorted(self._owners))  #: strings without any of these phrases match nothing

    def _want(self, page: RulePage, emitted: Sequence[EmittedBy], version: str) -> None:
        result = self.results[page.id] = Verified(page.id, page.status, pattern=page.patterns[0])
        if version and not any(in_range(version, emitter.versions) for emitter in emitted):
            ranges = ", ".join(emitter.versions for emitter in emitted)
            result.state, result.reason = "skipped", f"it claims {ranges} only"
            return
        texts: dict[tuple[str, ...], str] = {}  # many branches differ only in text that is not searched for
        for pattern in page.patterns:
            for branch in branches(pattern):
                texts.setdefault(tuple(pieces_of(branch)), pattern)
        if () in texts and any(
            not same_package(emitter.package, emitted[0].package) for emitter in page.emitted_by
        ):
            self._vague.add(page.id)
        wanted = [
            _Wanted(page.id, pattern, [self._pieces.setdefault(piece, _Piece(piece)) for piece in pieces])
            for pieces, pattern in texts.items()
            if pieces
        ]
        if not wanted:
            result.state, result.reason = "skipped", "its patterns hold no text that is long enough"
        self._modules[page.id] = [emitter.module for emitter in emitted if emitter.module]
        self._wanted += wanted

    @property
    def done(self) -> bool:
        """True if all rules are found or skipped."""
        return all(self.results[wanted.rule].state != "missing" for wanted in self._wanted)

    def may_be_in(self, text: str) -> bool:
        """Return True if a source file can contain an alternative. Most files cannot, and need no parsing."""
        return self.promise(text) > 0

    def promise(self, text: str) -> int:
        """Return how likely a source file is to contain an alternative.

        The result is 2 if the file contains all text of an alternative, 1 if it can contain some of the text,
        and 0 otherwise.
        """
        lowered = text.lower()
        hinted = self._hinted(lowered)
        whole = any(all(piece.lowered in lowered for piece in alternative.pieces) for alternative in hinted)
        return 2 if whole else int(bool(hinted))

    def see(self, file: str, templates: Iterable[Template]) -> None:
        """Search the strings in a file for the text of all missing rules."""
        given = [(template, template.text.lower()) for template in templates]
        whole = "\n".join([lowered for _, lowered in given])
        hinted = self._hinted(whole)
        if not hinted:
            return
        pieces = {
            piece.text: piece
            for alternative in hinted
            for piece in alternative.pieces
            if piece.anchor in whole
        }
        lines: dict[str, list[int]] = {}  # line numbers of each piece
        for template, lowered in given:
            for piece in pieces.values():
                if piece.anchor not in lowered:
                    continue
                if template.text == piece.text if template.name else covers(lowered, piece.lowered):
                    lines.setdefault(piece.text, []).append(template.line)
        for wanted in hinted:
            places = {piece.text: lines[piece.text] for piece in wanted.pieces if piece.text in lines}
            if self.results[wanted.rule].state == "missing" and places:
                self._record_found(wanted, file, places)

    def absent(self, compiled: str) -> None:
        """Record that the package was built without a source file, such as ``ProcessGroupNCCL.cpp``."""
        for rule, modules in self._modules.items():
            result = self.results[rule]
            names = [module.rpartition("/")[2] for module in modules]
            if result.state == "missing" and names and all(name == compiled for name in names):
                result.state, result.reason = "skipped", f"this build is without {compiled}"

    def settle(self) -> None:
        """Mark missing rules as skipped if their only long text can come from another package."""
        for rule in self._vague:
            result = self.results[rule]
            if result.state == "missing":
                result.state, result.reason = (
                    "skipped",
                    "the text that is long enough may be another package's",
                )

    def named(self, path: str) -> bool:
        """Return True if a rule names this file as the origin of its text. Such a file is searched first."""
        return any(
            path == module or path.endswith("/" + module.removeprefix("/"))
            for modules in self._modules.values()
            for module in modules
        )

    @property
    def compiled(self) -> frozenset[str]:
        """The compiled source files that the missing rules name as their origin."""
        return frozenset(
            module.rpartition("/")[2]
            for rule, modules in self._modules.items()
            if self.results[rule].state == "missing"
            for module in modules
            if module.endswith(COMPILED)
        )

    def _hinted(self, lowered: str) -> list[_Wanted]:
        """Return the pattern alternatives of missing rules whose literal parts can occur in the text."""
        data = lowered.encode("utf-8", "replace")
        near: set[int] = set()
        for phrase, end in self.phrases.hits(data):
            around = data[max(0, end - _AROUND_PHRASE) : end + _AROUND_PHRASE]
            near.update(id(piece) for piece in self._owners[phrase] if piece.may_be_in(around))
        if not near:
            return []
        # If a file contains an alternative, it also contains the first specific piece of this alternative.
        candidates = sorted(number for piece in near for number in self._by_first.get(piece, ()))
        return [
            alternative
            for alternative in map(self._wanted.__getitem__, candidates)
            if self.results[alternative.rule].state == "missing"
            and all(id(piece) in near for piece in alternative.pieces if piece.is_specific)
        ]

    def _record_found(self, wanted: _Wanted, file: str, lines: dict[str, list[int]]) -> None:
        """Record an alternative as found if all of its pieces are near each other in a file.

        A compiled file contains the parts of a message at different offsets, so only the specific pieces
        count.
        """
        compiled = any(line == 0 for found in lines.values() for line in found)
        if any(piece.text not in lines for piece in wanted.pieces if piece.is_specific or not compiled):
            return
        for line in lines[max(lines, key=len)]:
            if all(any(abs(other - line) <= NEAR for other in found) for found in lines.values()):
                result = self.results[wanted.rule]
                result.state, result.pattern, result.file, result.line = "found", wanted.pattern, file, line
                return


def same_package(name: str, other: str) -> bool:
    """Return True if two names denote the same package, such as ``torch-npu`` and ``torch_npu``."""
    return canonicalize_name(name) == canonicalize_name(other)


def in_range(version: str, versions: str) -> bool:
    """Return True if a version is in a range, or if the version or the range cannot be parsed."""
    try:
        return SpecifierSet(versions).contains(Version(version).base_version, prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
