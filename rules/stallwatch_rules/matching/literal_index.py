"""Find the lines that a pattern can match by searching for fixed strings that its matches contain.

Searching for fixed strings is faster than searching for patterns. For example, every match of
``RuntimeError: (?:CUDA|HIP) error: out of memory`` contains the string ``error: out of memory``. In one pass,
hyperscan searches for the strings of many patterns and for the few patterns that have no such string. The
matcher tries a pattern only on lines that contain the pattern's string.

Hyperscan first compares the last eight bytes of a string. It checks the other bytes only if these eight bytes
match. Therefore, a string is shortened so that its last bytes are rare. For example, many words end like
``failed to initialize``, but few end like ``failed to initializ``. The shortened strings occur on hardly more
lines, and the search takes about a fifth less time (2.8 instead of 2.2 GB/s with 200 patterns, and 1.2
instead of 1.0 GB/s with 1,000 patterns).
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
from stallwatch_rules.matching import disk_cache
from stallwatch_rules.matching.database import BlockScanner, DatabaseStore, Hits
from stallwatch_rules.pages.patterns import TOKEN, hyperscan, widened_pattern
from stallwatch_rules.text.lazy import lazy

# The regular expression parser of Python is not public. The name of this parser changed in Python 3.11.
sre: Any = import_module("re._constants" if sys.version_info >= (3, 11) else "sre_constants")
sre_parse: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_LEAST = 6  # minimum number of letters in a string; shorter strings occur on too many lines
_ENOUGH = 12  # minimum rarity of a shortened string
_MOST = 24  # maximum number of strings for one pattern
_SEEN = 8  # number of bytes at the end of a string that hyperscan compares first
_KEPT = 4  # maximum number of cached indexes, each in its own file
# Most lines of a training log contain at least one of these words.
_FREQUENT = lazy(
    "loss|grad_norm|gradient|learning_rate|learning|rate|epoch|iteration|global_step|steps?=?|rank|torch"
    "|Alloc|INFO|WARN(?:ING)?|[Ww]arning|NCCL|deepspeed|DeepSpeed|python|site-packages|Traceback|File|line"
    "|Evaluation|time|samples|tokens|memory|model|train|trainer|dataset|[Ee]rror"
)
_USUAL = Path(__file__).with_name("usual_lines.txt")  # a file with typical lines of a training log
_IGNORES_CASE = int(sre_parse.SRE_FLAG_IGNORECASE)
# Parts of patterns that can match beyond the end of a line or of a segment of a line.
_CROSSING = lazy(r"\[\^|\\[sWDPp]|\[[^\]]*\\[sWD]|(?<!\\)\.|\(\?i\)")


class Literal(NamedTuple):
    """A fixed string that every match of a pattern contains."""

    text: str
    caseless: bool = False

    @property
    def rarity(self) -> int:
        """The approximate rarity of the string: the number of its letters outside frequent words."""
        letters = "".join(_FREQUENT.sub(" ", self.text).split())
        return len(letters) if letters.isascii() else len(letters.encode())

    def cut(self) -> Literal:
        """Return a shortened string whose last bytes are as rare as possible."""
        if not self.text.isascii():
            return self
        ends = [end for end in range(1, len(self.text)) if Literal(self.text[:end]).rarity >= _ENOUGH]
        ends.insert(0, len(self.text))
        return self._replace(text=self.text[: min(ends, key=lambda end: _commonness(self.text[:end]))])


Literals = frozenset[Literal]


def _commonness(text: str) -> float:
    """Return the approximate logarithm of the probability of a string's last letters."""
    text = text[-_SEEN:]
    return sum(map(_likelihood, text, text[1:]))


@functools.cache
def _likelihood(first: str, second: str) -> float:
    pairs, letters = _counted()
    # If the sample lines do not contain a pair of letters, the frequency of its second letter is used.
    seen = pairs[first + second] + 0.05 * letters[second] / letters.total() + 1e-4
    return math.log(seen / pairs.total())


@functools.cache
def _counted() -> tuple[Counter[str], Counter[str]]:
    usual = _USUAL.read_text()
    return Counter(map("".join, itertools.pairwise(usual))), Counter(usual)


@functools.cache
def literals_of(pattern: str) -> Literals | None:
    """Return fixed strings such that every match of a pattern contains at least one of them.

    Return ``None`` if these strings are too short or too common, or if there are too many of them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parse.parse(pattern)
    except Exception:  # google-re2 accepts some patterns that Python's parser rejects
        return None
    best = _best(_flat(parsed, bool(parsed.state.flags & _IGNORES_CASE)))
    if best is None or len(best) > _MOST or _rarity(best) < _LEAST:
        return None
    if any(literal.caseless and not literal.text.isascii() for literal in best):
        return None  # hyperscan ignores case only in ASCII letters
    return frozenset(literal.cut() for literal in best)


def _flat(parsed: Iterable[Any], caseless: bool) -> Iterable[tuple[Any, Any, bool]]:
    """Yield the operations of a sequence. A group is replaced with the operations inside it."""
    for operation, argument in parsed:
        if operation is sre.SUBPATTERN:
            _, added, removed, inner = argument
            inside = (caseless or bool(added & _IGNORES_CASE)) and not removed & _IGNORES_CASE
            yield from _flat(inner, inside)
        else:
            yield operation, argument, caseless


def _best(sequence: Iterable[tuple[Any, Any, bool]]) -> Literals | None:
    """Return the rarest set of alternative strings in a sequence of operations.

    Every match of the sequence contains at least one string from the returned set.
    """
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
    best = max(found, key=lambda literals: (min(_rarity(literals), 16), -len(literals)))
    return best if all(literal.text for literal in best) else None


def _inside(operation: Any, argument: Any, caseless: bool) -> Literals | None:
    if operation is sre.BRANCH:
        found = [_best(_flat(branch, caseless)) for branch in argument[1]]
        return None if None in found else frozenset().union(*[literals for literals in found if literals])
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT) and argument[0] > 0:
        return _best(_flat(argument[2], caseless))
    return None


def _rarity(literals: Literals) -> int:
    return min(literal.rarity for literal in literals)


@functools.lru_cache(maxsize=8192)  # each pattern is used several times at startup
def raw_form(pattern: str) -> str:
    """Return the form of a pattern for searches in raw lines, whose prefixes have not been removed.

    A raw line can begin with a launcher's prefix, end with a carriage return, or be part of a container
    record. Therefore, the raw form has no anchors for the start or the end of a line. It matches every line
    that the pattern matches. It also matches some other lines, which are excluded when they are parsed.
    """
    return TOKEN.sub(_freed, widened_pattern(pattern))


def is_certain(pattern: str) -> bool:
    """Return whether the pattern matches every line that contains a match of its raw form."""
    return (
        widened_pattern(pattern) == pattern and raw_form(pattern) == pattern and not _CROSSING.search(pattern)
    )


def is_anchored(pattern: str) -> bool:
    """Return whether a pattern has an anchor, so that prefixes must be removed before the search."""
    return any(token["start"] or token["end"] for token in TOKEN.finditer(pattern))


def _freed(token: re.Match[str]) -> str:
    if token["start"]:
        return r"(?:^|\W)"  # a line's prefix ends with a space or a symbol
    return "" if token["end"] else token.group()


class _Table(msgspec.Struct, array_like=True):
    """The part of a ``LiteralIndex`` that is cached on disk."""

    rest: tuple[int, ...]
    owners: tuple[tuple[int, ...], ...]
    expressions: tuple[str, ...]  #: raw forms of the patterns in ``rest``
    texts: tuple[tuple[str, bool], ...]  #: strings for the other entries of ``owners``, followed by the words

    @classmethod
    def of(cls, patterns: Sequence[str], words: Sequence[str], without: Container[int]) -> _Table:
        """Find the fixed strings of these patterns. For 1,000 patterns, the search takes 0.5 seconds."""
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
        targets = tuple((text.text, text.caseless) for text in (*texts, *map(Literal, words)))
        return cls(tuple(rest), owners, tuple(raw_form(patterns[number]) for number in rest), targets)


class LiteralIndex:
    """An index of the fixed strings of many patterns. It maps each string to its patterns."""

    def __init__(
        self,
        patterns: Sequence[str],
        store: DatabaseStore,
        words: Sequence[str] = (),
        without: Collection[int] = (),
    ) -> None:
        """Index additional strings (`words`) and all patterns except those whose indexes are in `without`.

        A hit for an additional string has a number greater than the last index of ``owners``.
        """
        table = disk_cache.load_or_make(
            store.folder,
            "literals-*.msgpack",
            (patterns, words, sorted(without)),
            _KEPT,
            load=_table_in,
            make=lambda: _Table.of(patterns, words, without),
            dump=msgspec.msgpack.encode,
        )
        #: Indexes of the patterns that are searched for directly because they have no fixed string.
        self.rest = table.rest
        #: Pattern indexes for each hit number: one pattern from ``rest``, or all patterns that share
        #: the string that was found.
        self.owners = table.owners
        self._scanner: BlockScanner | None = None
        if table.expressions or table.texts:
            self._scanner = BlockScanner(store.compiled(table.expressions, table.texts))

    def hits(self, data: bytes | memoryview) -> Hits:
        """Return the hits in a block. Each hit is an index into ``owners``, or a higher number for a word."""
        return self._scanner.hits(data) if self._scanner is not None else ([], [])


def _table_in(content: bytes) -> _Table | None:
    try:
        return from_msgpack(content, _Table)
    except (msgspec.MsgspecError, ValueError):
        return None


@functools.lru_cache(maxsize=4)
def literal_index(patterns: tuple[str, ...], store: DatabaseStore) -> LiteralIndex:
    """Return the index for the patterns of a catalogue. All callers with the same catalogue share it.

    Raise ``hyperscan.error`` if the patterns cannot be compiled.
    """
    return LiteralIndex(patterns, store)


def is_matchable(patterns: tuple[str, ...], store: DatabaseStore) -> bool:
    """Return whether hyperscan can compile these patterns together. If hyperscan is missing, return True."""
    if hyperscan is None or not patterns:
        return True
    try:
        literal_index(patterns, store)
    except hyperscan.error:
        return False
    return True
