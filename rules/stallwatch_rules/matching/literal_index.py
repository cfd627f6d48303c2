"""The literal prefilter: fixed texts of which a pattern's every match holds one, far quicker to look for.

``RuntimeError: (?:CUDA|HIP) error: out of memory`` has the one text ``error: out of memory``. One pass of
hyperscan looks for the texts of many patterns, and for the few patterns that have none. Only where something
was found are the patterns themselves tried.

Hyperscan recognises a text by its last eight bytes and looks at the rest only then. ``failed to initialize``
ends as other words do, ``failed to initializ`` less so: texts that are cut where they end least commonly are
found on hardly more lines, and a fifth sooner (200 patterns: 2.2 to 2.8 GB/s; 1,000: 1.0 to 1.2).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stallwatch_rules.decoding import from_msgpack
from stallwatch_rules.matching import cachefolder
from stallwatch_rules.matching.database import BlockScanner, DatabaseStore, Hits
from stallwatch_rules.pages.patterns import TOKEN, hyperscan, widened
from stallwatch_rules.text.lazy import lazy

# Python's own parser of expressions: no public name, and another one since 3.11.
sre: Any = import_module("re._constants" if sys.version_info >= (3, 11) else "sre_constants")
sre_parse: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_LEAST = 6  # letters below which a text stands on too many lines
_ENOUGH = 12  # letters that are left where a text is cut
_MOST = 24  # texts of one pattern
_SEEN = 8  # last bytes of a text by which it is recognised
_KEPT = 4  # lists of patterns that are kept, each in a file of its own
# Every other line of a training's log holds one of these.
_FREQUENT = lazy(
    "loss|grad_norm|gradient|learning_rate|learning|rate|epoch|iteration|global_step|steps?=?|rank|torch"
    "|Alloc|INFO|WARN(?:ING)?|[Ww]arning|NCCL|deepspeed|DeepSpeed|python|site-packages|Traceback|File|line"
    "|Evaluation|time|samples|tokens|memory|model|train|trainer|dataset|[Ee]rror"
)
_USUAL = Path(__file__).with_name("usual_lines.txt")  # such as most of a training's log consists of
_IGNORES_CASE = int(sre_parse.SRE_FLAG_IGNORECASE)
# What may reach over a line's end or into another segment of it.
_CROSSING = lazy(r"\[\^|\\[sWDPp]|\[[^\]]*\\[sWD]|(?<!\\)\.|\(\?i\)")


class Literal(NamedTuple):
    """A fixed text."""

    text: str
    caseless: bool = False

    @property
    def rarity(self) -> int:
        """How seldom it stands on a line, roughly: its letters without the frequent words in it."""
        letters = "".join(_FREQUENT.sub(" ", self.text).split())
        return len(letters) if letters.isascii() else len(letters.encode())

    def cut(self) -> Literal:
        """The text, or that beginning of it which is recognised with the least trouble, if rare enough."""
        if not self.text.isascii():
            return self
        ends = [end for end in range(1, len(self.text)) if Literal(self.text[:end]).rarity >= _ENOUGH]
        ends.insert(0, len(self.text))
        return self._replace(text=self.text[: min(ends, key=lambda end: _commonness(self.text[:end]))])


Literals = frozenset[Literal]


def _commonness(text: str) -> float:
    """The logarithm of how likely the last letters follow one another, roughly."""
    text = text[-_SEEN:]
    return sum(map(_likelihood, text, text[1:]))


@functools.cache
def _likelihood(first: str, second: str) -> float:
    pairs, letters = _counted()
    # What stands in none of the usual lines is told apart by its letters.
    seen = pairs[first + second] + 0.05 * letters[second] / letters.total() + 1e-4
    return math.log(seen / pairs.total())


@functools.cache
def _counted() -> tuple[Counter[str], Counter[str]]:
    usual = _USUAL.read_text()
    return Counter(map("".join, itertools.pairwise(usual))), Counter(usual)


@functools.cache
def literals_of(pattern: str) -> Literals | None:
    """The texts, or ``None`` if the pattern has none that are worth looking for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except Exception:  # whatever Python's parser dislikes: google-re2 knows a few things more
        return None
    best = _best(_flat(parsed, bool(parsed.state.flags & _IGNORES_CASE)))
    if best is None or len(best) > _MOST or _rarity(best) < _LEAST:
        return None
    if any(one.caseless and not one.text.isascii() for one in best):
        return None  # other letters than ASCII's are not found in the other case
    return frozenset(one.cut() for one in best)


def _flat(parsed: Iterable[Any], caseless: bool) -> Iterable[tuple[Any, Any, bool]]:
    """A sequence with the groups in it opened."""
    for operation, argument in parsed:
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            inside = (caseless or bool(added & _IGNORES_CASE)) and not removed & _IGNORES_CASE
            yield from _flat(inner, inside)
        else:
            yield operation, argument, caseless


def _best(sequence: Iterable[tuple[Any, Any, bool]]) -> Literals | None:
    """The rarest of the sets of texts that the parts of a sequence have: each alone would do."""
    found: list[Literals] = []
    run = Literal("")
    for operation, argument, caseless in sequence:
        if operation is sre.LITERAL and (not run.text or run.caseless == caseless):
            run = Literal(run.text + chr(argument), caseless)
            continue
        if operation is sre.AT:
            continue
        found.append(frozenset((run,)))
        run = Literal(chr(argument), caseless) if operation is sre.LITERAL else Literal("")
        inner = _inside(operation, argument, caseless)
        if inner is not None:
            found.append(inner)
    found.append(frozenset((run,)))
    best = max(found, key=lambda one: (min(_rarity(one), 16), -len(one)))
    return best if all(one.text for one in best) else None


def _inside(operation: Any, argument: Any, caseless: bool) -> Literals | None:
    if operation is sre.BRANCH:
        found = [_best(_flat(branch, caseless)) for branch in argument[1]]
        return None if None in found else frozenset().union(*[one for one in found if one])
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] > 0:
        return _best(_flat(argument[2], caseless))
    return None


def _rarity(literals: Literals) -> int:
    return min(one.rarity for one in literals)


@functools.lru_cache(maxsize=8192)  # a start asks for each of them several times
def raw_form(pattern: str) -> str:
    """The pattern to look for in raw bytes, before anything is taken off their lines.

    A raw line may have a launcher's prefix before it, a carriage return behind it, or be wrapped in a
    container's record. So what stands for a line's start or end is let go: the raw form is found wherever the
    pattern is, and elsewhere too. Whoever reads the line decides.
    """
    return TOKEN.sub(_freed, widened(pattern))


def certain(pattern: str) -> bool:
    """Whether a place where the raw form is found is sure to be one where the pattern matches its line."""
    return widened(pattern) == pattern and raw_form(pattern) == pattern and not _CROSSING.search(pattern)


def anchored(pattern: str) -> bool:
    """Whether the pattern says where on its line it stands: then the line's prefixes matter."""
    return any(token["start"] or token["end"] for token in TOKEN.finditer(pattern))


def _freed(token: re.Match[str]) -> str:
    if token["start"]:
        return r"(?:^|\W)"  # a prefix ends in a blank or a sign
    return "" if token["end"] else token.group()


class _Table(msgspec.Struct, array_like=True):
    """What an index looks for."""

    rest: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]
    expressions: tuple[str, ...]  #: of ``rest``
    texts: tuple[tuple[str, bool], ...]  #: of the other owners, then the words

    @classmethod
    def of(cls, patterns: Sequence[str], words: Sequence[str], without: Container[int]) -> _Table:
        """Find the texts of these patterns. Parsing a thousand of them takes half a second."""
        texts: dict[Literal, list[int]] = {}
        rest: list[int] = []
        for number, literals in enumerate(map(literals_of, patterns)):
            if number in without:
                continue
            if literals is None:
                rest.append(number)
            for text in sorted(literals or ()):
                texts.setdefault(text, []).append(number)
        owners = (*((number,) for number in rest), *map(tuple, texts.values()))
        looked_for = tuple((text.text, text.caseless) for text in (*texts, *map(Literal, words)))
        return cls(tuple(rest), owners, tuple(raw_form(patterns[number]) for number in rest), looked_for)


class LiteralIndex:
    """The fixed texts of a list of patterns, and which patterns each stands for."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        words: Sequence[str] = (),
        without: Collection[int] = (),
    ) -> None:
        """``words`` are looked for, too; their numbers follow those of ``owners``. ``without`` are patterns
        that are not looked for."""
        table = cachefolder.kept(
            store.folder,
            "literals-*.msgpack",
            (patterns, words, sorted(without)),
            _KEPT,
            load=_table_in,
            make=lambda: _Table.of(patterns, words, without),
            dump=msgspec.msgpack.encode,
        )
        self.rest = table.rest  #: patterns that have no text: they themselves are found
        #: what each number that is found stands for: one of ``rest``, then the patterns of each text
        self.owners = table.owners
        self._scanner: BlockScanner | None = None
        if table.expressions or table.texts:
            self._scanner = BlockScanner(store.compiled(table.expressions, table.texts))

    def hits(self, data: bytes | memoryview) -> Hits:
        """What was found; the numbers are those of ``owners``, then of the words."""
        return self._scanner.hits(data) if self._scanner is not None else ([], [])


def _table_in(content: bytes) -> _Table | None:
    try:
        return from_msgpack(content, _Table)
    except (msgspec.MsgspecError, ValueError):
        return None


@functools.lru_cache(maxsize=4)
def literal_index(patterns: tuple[str, ...], store: DatabaseStore) -> LiteralIndex:
    """The index of a catalogue's patterns, for lines and for raw bytes alike: made once for all who ask.

    Raises ``hyperscan.error`` if there can be none.
    """
    return LiteralIndex(patterns, store)


def matchable(patterns: tuple[str, ...], store: DatabaseStore) -> bool:
    """Whether hyperscan, if it is installed, can look for these patterns together."""
    if hyperscan is None or not patterns:
        return True
    try:
        literal_index(patterns, store)
    except hyperscan.error:
        return False
    return True
