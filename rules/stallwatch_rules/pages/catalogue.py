"""Load all rule pages from the package and from the user's folders and validate them together.

Parsing hundreds of Markdown files takes a second. Therefore, the pages are cached. A cache entry is valid
only if none of its files has changed. A catalogue with problems is not cached.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallwatch_rules.decoding import from_msgpack
from stallwatch_rules.matching import disk_cache
from stallwatch_rules.matching.database import DatabaseStore
from stallwatch_rules.matching.literal_index import is_matchable
from stallwatch_rules.pages.page import Extension, RulePage, Tag, extended, parse
from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.pages.patterns import FOLDER, pattern_fault

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


_KEPT = 4  #: maximum number of cached catalogues

_PACKS = files("stallwatch_rules") / "packs"
# Pages in these folders must be in both languages.
_PACKAGED = (str(files("stallwatch_rules") / "catalogue"), str(_PACKS))


def packs() -> list[str]:
    """Return the names of the packs. A pack is a folder of packaged pages that is loaded only on request."""
    return sorted(entry.name for entry in _PACKS.iterdir() if entry.is_dir())


def folder_of_pack(name: str) -> Path:
    """Return the folder of a pack. A pack is loaded in the same way as a user's folder of rules."""
    return Path(str(_PACKS / name))


@functools.cache
def packs_by_rule() -> dict[str, str]:
    """Map each rule that a pack defines or extends to the name of the pack."""
    return {path.stem: name for name in packs() for path in folder_of_pack(name).rglob("*.md")}


@dataclass(frozen=True)
class Catalogue:
    """The valid rule pages by ID, and the problems in the invalid pages."""

    pages: Mapping[str, RulePage]
    problems: Sequence[PageError] = ()
    digest: str = field(default="", compare=False)  #: digest of the parts of pages that the matcher uses
    store: DatabaseStore = field(default_factory=DatabaseStore, compare=False)  #: compiler for the patterns

    @classmethod
    def of(
        cls,
        pages: Iterable[RulePage],
        problems: Sequence[PageError] = (),
        store: DatabaseStore | None = None,
    ) -> Catalogue:
        """Return a catalogue that contains only these pages, for example, a single page under test."""
        by_id = {page.id: page for page in pages}
        return cls(by_id, list(problems), _digest(by_id.values()), store or DatabaseStore())

    def tagged(self, tag: Tag) -> frozenset[str]:
        """Return the rules that have this tag."""
        return frozenset(page.id for page in self.pages.values() if tag in page.tags)

    @property
    def failures(self) -> frozenset[str]:
        """The rules that describe failures: all causes and symptoms that are not harmless."""
        return frozenset(
            page.id
            for page in self.pages.values()
            if page.role in ("cause", "symptom") and page.harm != "harmless"
        )

    def rule_tagged(self, tag: Tag) -> str:
        """Return the first rule with this tag, or "" if there is none. Packaged rules come first."""
        return next((page.id for page in self.pages.values() if tag in page.tags), "")


def load_catalogue(extra_dirs: Sequence[Path] = (), *, cache: Path | None = None) -> Catalogue:
    """Read the packaged pages and the pages in extra folders (``<family>/<id>.md``).

    Invalid pages are omitted and reported in ``problems``. All other pages are loaded. Parsed pages and
    compiled patterns are cached in the folder `cache`.
    """
    store = DatabaseStore(cache)
    roots = [files("stallwatch_rules") / "catalogue", *extra_dirs]
    read = _read_files(roots) if cache is not None else None
    return disk_cache.load_or_make(
        cache if read is not None else None,
        "catalogue-*.msgpack",
        read,
        _KEPT,
        load=lambda content: _loaded(content, store),
        make=lambda: _parsed(roots, store),
        dump=_dumped,
    )


def _loaded(content: bytes, store: DatabaseStore) -> Catalogue | None:
    try:
        return Catalogue.of(from_msgpack(content, list[RulePage]), store=store)
    except (msgspec.MsgspecError, ValueError):
        return None


def _dumped(catalogue: Catalogue) -> bytes | None:
    return None if catalogue.problems else msgspec.msgpack.encode(list(catalogue.pages.values()))


def _read_files(roots: Sequence[Traversable]) -> list[tuple[bytes, int, int]] | None:
    """Return the path, size, and modification time of each file, or ``None`` if some are not on disk."""
    try:
        entries = [*(file for root in roots for file in _page_files(root)), *FOLDER.iterdir()]
        paths = [entry for entry in entries if isinstance(entry, Path)]
        found = [(os.fsencode(path), (status := path.stat()).st_size, status.st_mtime_ns) for path in paths]
    except OSError:
        return None
    return found if len(paths) == len(entries) else None


def _parsed(roots: Sequence[Traversable], store: DatabaseStore) -> Catalogue:
    pages: dict[str, RulePage] = {}
    extensions: list[Extension] = []
    problems: list[PageError] = []
    for root in roots:
        if not root.is_dir():
            message = "no such folder of rule pages"
            problems.append(PageError(str(root), 1, message, "specify the path of an existing folder"))
            continue
        for file in _page_files(root):
            try:
                page = _read(file.read_bytes(), str(file))
            except PageError as error:
                problems += error.every()
            except OSError as error:
                reason = error.strerror or str(error)
                problems.append(PageError(str(file), 1, f"cannot be read: {reason}", "check the permissions"))
            else:
                if isinstance(page, Extension):
                    extensions.append(page)
                elif page.id in pages:
                    message = f"the id {page.id!r} is already used in {pages[page.id].path}"
                    line = _line_of(page, page.id)
                    problems.append(PageError(page.path, line, message, "choose another id"))
                else:
                    pages[page.id] = page
    for extension in extensions:
        if any(pattern_fault(pattern) for pattern in (*extension.patterns, *extension.unless)):
            problems += _problems_of(extension.path)
        elif extension.extends in pages:
            pages[extension.extends] = extended(pages[extension.extends], extension)
        else:
            message = f"extends the unknown rule {extension.extends!r}"
            problems.append(PageError(extension.path, 1, message, "correct the id, or add the rule's page"))
    problems += _refused_by_hyperscan(pages, store)
    problems += _unknown_consequences(pages)
    problems += _circles(pages)
    return Catalogue.of(pages.values(), problems, store)


def _page_files(folder: Traversable, seen: set[Path] | None = None) -> Iterator[Traversable]:
    """Yield the pages in a folder. Each folder is visited once, even if several links refer to it."""
    seen = set() if seen is None else seen
    if isinstance(folder, Path):
        place = folder.resolve()
        if place in seen:
            return
        seen.add(place)
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "_")) or entry.name == "README.md":
            continue
        if entry.is_dir():
            yield from _page_files(entry, seen)
        elif entry.name.endswith(".md"):
            yield entry


@functools.lru_cache(maxsize=1024)
def _read(content: bytes, path: str) -> RulePage | Extension:
    """Parse a page. The result is cached, because a process can load the catalogue several times."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PageError(path, line, "not UTF-8 text", "save the page as UTF-8") from error
    return parse(text, path, quick=True, chinese=path.startswith(_PACKAGED))


def _refused_by_hyperscan(pages: dict[str, RulePage], store: DatabaseStore) -> Iterator[PageError]:
    """Compile all patterns of the matcher together.

    If the compilation fails, remove the pages with invalid patterns and yield their problems. The check
    starts with the last pages, which are the user's pages. It stops as soon as the remaining patterns can be
    compiled, because a check of all packaged pages takes seconds.
    """
    refused = not is_matchable(scanned_patterns(pages.values()), store)
    for page in reversed(list(pages.values())):
        if not refused:
            return
        if any(pattern_fault(pattern) for pattern in (*page.patterns, *page.requires)):
            del pages[page.id]
            yield from _problems_of(page.path)
            refused = not is_matchable(scanned_patterns(pages.values()), store)


def _problems_of(path: str) -> Iterator[PageError]:
    """Reparse a page with all checks and yield its problems."""
    try:
        parse(Path(path).read_text(encoding="utf-8"), path, chinese=False)
    except PageError as error:
        yield from error.every()


def scanned_rules(pages: Iterable[RulePage]) -> list[RulePage]:
    """Return the rules that are matched against lines: all rules that are not retired."""
    return [page for page in pages if page.status != "retired"]


def scanned_patterns(pages: Iterable[RulePage]) -> tuple[str, ...]:
    """Return the patterns that the matcher searches for, in the matcher's order."""
    return tuple(pattern for page in scanned_rules(pages) for pattern in (*page.patterns, *page.requires))


def _unknown_consequences(pages: Mapping[str, RulePage]) -> Iterator[PageError]:
    for page in pages.values():
        for consequence in page.explains:
            if consequence == page.id:
                message, remedy = "a rule cannot explain itself", "remove its id from explains"
            elif consequence not in pages:
                message = f"explains the unknown rule {consequence!r}"
                remedy = "correct the id, or add the rule's page"
            else:
                continue
            yield PageError(page.path, _line_of(page, consequence, after="explains"), message, remedy)


def _circles(pages: Mapping[str, RulePage]) -> Iterator[PageError]:
    """Yield a problem for each cycle of rules that explain each other.

    No rule in a cycle can be the cause.
    """
    explains = {page.id: [rule for rule in page.explains if rule != page.id] for page in pages.values()}
    while True:
        try:
            TopologicalSorter(explains).prepare()
            return
        except CycleError as error:
            circle = error.args[1][:0:-1]  # the error lists each rule before the rule that explains it
        first = min(circle, key=list(pages).index)
        circle = circle[circle.index(first) :] + circle[: circle.index(first)]
        explains[first].remove(circle[1])
        yield PageError(
            pages[first].path,
            _line_of(pages[first], circle[1], after="explains"),
            "the rules explain each other in a cycle: " + " → ".join((*circle, first)),
            "remove an entry of explains, so that only earlier problems explain later problems",
        )


def _line_of(page: RulePage, needle: str, after: str = "") -> int:
    """Return the line number at which the text first occurs in the page, or 1 if it does not occur."""
    try:
        lines = Path(page.path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return 1
    reached = not after
    for number, line in enumerate(lines, 1):
        reached = reached or line.startswith(after)
        if reached and needle in line:
            return number
    return 1


def _digest(pages: Iterable[RulePage]) -> str:
    seen = [(page.id, page.status, page.patterns, page.requires, page.unless, page.when) for page in pages]
    return hashlib.sha256(msgspec.json.encode(sorted(seen))).hexdigest()[:16]
