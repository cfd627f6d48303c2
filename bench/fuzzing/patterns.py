"""Attack every regular expression in Stallwatch with strings that make a backtracking engine retry.

The strings are derived from the pattern itself. Some strings repeat the text that a quantifier repeats,
after the prefix that the pattern requires and before a suffix that does not match. Other strings repeat the
beginning of the pattern many times, because a search starts at each beginning. The module reports patterns
whose search time grows much faster than the string. ``growth`` passes the same strings to the parsers. Some
parsers truncate a line before they search it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stallwatch
import stallwatch_alerts
import stallwatch_dashboard
import stallwatch_exporter
import stallwatch_lint
import stallwatch_logs
import stallwatch_rules
from stallwatch_rules.text.lazy import _Compiled

try:
    from re import _constants as C  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as C  # type: ignore[no-redef]
    import sre_parse as parser  # type: ignore[no-redef]

_PACKAGES = (
    *(stallwatch_rules, stallwatch_logs, stallwatch_lint, stallwatch_exporter, stallwatch_alerts),
    *(stallwatch_dashboard, stallwatch),
)
_NOT_IMPORTED = ("bootstrap", ".pages.", "entry", "__main__", "migrations", ".grafana", "integrations")
_SIZES = (2_000, 8_000)
_FASTER = 8.0  #: smallest reported growth of the time for four times the length (linear: 4, quadratic: 16)
_SURE = 0.004  #: minimum number of seconds for the longer text; a linear search takes a tenth of this time
_ENOUGH = 20.0  # elapsed seconds after which a search is stopped
_ENDS = ("", "\0", "\n")
_MOST_UNITS = 16  # maximum number of texts for one pattern


class Pattern(NamedTuple):
    """A regular expression and its location in the source code."""

    place: str
    pattern: str | bytes
    flags: int


class Text(NamedTuple):
    """Text whose middle part can be repeated until the text reaches any size."""

    before: str
    unit: str
    end: str

    def of(self, size: int) -> str:
        """Return the text with about `size` characters."""
        return self.before + self.unit * max(1, size // len(self.unit)) + self.end


# ---------------------------------------------------------------- collection of the patterns


@functools.cache
def every_pattern() -> tuple[Pattern, ...]:
    """Return all distinct patterns in Stallwatch's modules."""
    found: dict[tuple[str | bytes, int], Pattern] = {}
    for package in _PACKAGES:
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if any(part in info.name + "." for part in _NOT_IMPORTED):
                continue
            try:
                module = importlib.import_module(info.name)
            except ImportError:  # the module needs an extra that is not installed
                continue
            for name, value in list(vars(module).items()):
                if not name.startswith("__"):
                    for pattern, flags in _patterns_in(value, 0, set()):
                        found.setdefault((pattern, flags), Pattern(f"{info.name}.{name}", pattern, flags))
    return tuple(found.values())


def _patterns_in(value: Any, deep: int, seen: set[int]) -> Iterator[tuple[str | bytes, int]]:
    if deep > 5 or id(value) in seen or isinstance(value, (str, bytes, int, float, type(None), type)):
        return
    seen.add(id(value))
    if isinstance(value, re.Pattern):
        yield value.pattern, value.flags
    elif isinstance(value, _Compiled):
        yield value._given[0], re.compile(*value._given).flags
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from _patterns_in(item, deep + 1, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _patterns_in(item, deep + 1, seen)
    elif type(value).__module__.startswith("stallwatch") and not callable(value):
        names = getattr(value, "__dict__", None) or getattr(type(value), "__struct_fields__", ())
        for name in list(names):
            yield from _patterns_in(getattr(value, name, None), deep + 1, seen)


# ---------------------------------------------------------------- texts for a pattern


@functools.lru_cache(4096)
def texts(pattern: str, flags: int) -> tuple[Text, ...]:
    """Return strings that a backtracking engine can take a long time to match against the pattern."""
    tree = parser.parse(pattern, flags & ~re.DEBUG)
    found: dict[tuple[str, str], None] = {}
    _walk(list(tree), "", found)
    first = ""
    for node in tree:  # beginnings of the pattern, where a search starts
        first += _sample([node])
        if first:
            found[("", first)] = None
        if len(first) > 40:
            break
    units = [(before, unit) for before, unit in found if unit][:_MOST_UNITS]
    return tuple(Text(before, unit, end) for before, unit in units for end in _ENDS)


def _walk(nodes: list[Any], before: str, found: dict[tuple[str, str], None]) -> None:
    for at, (op, argument) in enumerate(nodes):
        if op in (C.MAX_REPEAT, C.MIN_REPEAT, getattr(C, "POSSESSIVE_REPEAT", None)):
            _, most, inner = argument
            if most is C.MAXREPEAT or most >= 16:
                for unit in _variants(list(inner)):
                    found[(before, unit)] = None
                    found[("", unit)] = None
                    follows = _sample(nodes[at + 1 : at + 2])
                    found[("", unit + follows)] = None
                    found[("", before + unit)] = None
            _walk(list(inner), before, found)
        elif op is C.SUBPATTERN:
            _walk(list(argument[3]), before, found)
        elif op is C.BRANCH:
            for branch in argument[1]:
                _walk(list(branch), before, found)
        elif op in (C.ASSERT, C.ASSERT_NOT):
            _walk(list(argument[1]), before, found)
        elif op is getattr(C, "ATOMIC_GROUP", None):
            _walk(list(argument), before, found)
        before += _sample([(op, argument)])


def _variants(nodes: list[Any]) -> list[str]:
    """Return a few strings that the nodes match."""
    if len(nodes) == 1:
        op, argument = nodes[0]
        if op is C.BRANCH:
            return [text for branch in argument[1] for text in _variants(list(branch))][:4]
        if op is C.SUBPATTERN:
            return _variants(list(argument[3]))
        if op is C.IN:
            return list(dict.fromkeys(_members(argument)))[:3]
        if op is C.ANY:
            return ["a", " "]
    return [text] if (text := _sample(nodes)) else []


def _sample(nodes: Iterable[Any]) -> str:
    """Return a short string that the nodes match. Ignore lookahead and lookbehind."""
    out = ""
    for op, argument in nodes:
        if op is C.LITERAL:
            out += chr(argument)
        elif op is C.NOT_LITERAL:
            out += "a" if argument != ord("a") else "b"
        elif op is C.ANY:
            out += "a"
        elif op is C.IN:
            out += next(iter(_members(argument)), "a")
        elif op is C.BRANCH:
            out += _sample(argument[1][0])
        elif op is C.SUBPATTERN:
            out += _sample(argument[3])
        elif op in (C.MAX_REPEAT, C.MIN_REPEAT, getattr(C, "POSSESSIVE_REPEAT", None)):
            out += _sample(argument[2]) * min(max(1, argument[0]), 20)
        elif op is getattr(C, "ATOMIC_GROUP", None):
            out += _sample(argument)
    return out


_OF_CATEGORY = {
    "CATEGORY_DIGIT": "1", "CATEGORY_NOT_DIGIT": "a", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_WORD": "a", "CATEGORY_NOT_WORD": "-",
}  # fmt: skip


def _members(items: list[Any]) -> list[str]:
    """Return a few characters from a character class."""
    if items and items[0][0] is C.NEGATE:
        barred = re.compile(_class_of(items[1:]))
        return [char for char in "a 1-.x:/\t" if not barred.match(char)][:3]
    found: list[str] = []
    for op, argument in items:
        if op is C.LITERAL:
            found.append(chr(argument))
        elif op is C.RANGE:
            found.append(chr(argument[0]))
        elif op is C.CATEGORY:
            found.append(_OF_CATEGORY.get(str(argument).rpartition(".")[2], "a"))
    return found


def _class_of(items: list[Any]) -> str:
    inside = ""
    for op, argument in items:
        if op is C.LITERAL:
            inside += re.escape(chr(argument))
        elif op is C.RANGE:
            inside += f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
        elif op is C.CATEGORY:
            letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[str(argument).rpartition("_")[2]]
            inside += "\\" + (letter.upper() if "NOT" in str(argument) else letter)
    return f"[{inside}]"


# ---------------------------------------------------------------- the search


def growth(search: Callable[[Any], object], text: Callable[[int], Any]) -> float:
    """Return the factor by which the search time grows if the text becomes four times as long.

    Return 0 if the times are too short for a reliable ratio.
    """
    took = _least(search, text(_SIZES[1]))
    if took < _SURE:
        return 0.0
    before = min(_least(search, text(_SIZES[0])) for _ in range(3))
    took = min(took, *(_least(search, text(_SIZES[1])) for _ in range(2)))
    return took / max(before, 20e-6) if took >= _SURE else 0.0


def _least(search: Callable[[Any], object], value: Any) -> float:
    """Return the shortest processor time of a search. Stop the search after `_ENOUGH` seconds."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _ENOUGH)
    began = time.process_time()
    try:
        search(value)
    except TimeoutError:
        return _ENOUGH
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return time.process_time() - began


def slow(pattern: Pattern) -> tuple[float, Text] | None:
    """Return the growth of a pattern's search time, and the text for which the search is slow.

    Return ``None`` if the growth is normal.
    """
    compiled = re.compile(pattern.pattern, pattern.flags)
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    look = compiled.search if is_searched(pattern) else compiled.match
    for candidate in texts(
        text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    ):

        def of(size: int, candidate: Text = candidate) -> str | bytes:
            made = candidate.of(size)
            return made if isinstance(pattern.pattern, str) else made.encode("latin-1", "replace")

        worst = growth(look, of)
        if worst > _FASTER:
            return worst, candidate
    return None


@functools.cache
def _sources() -> str:
    folders = [Path(package.__path__[0]) for package in _PACKAGES]
    return "\n".join(path.read_text("utf-8") for folder in folders for path in sorted(folder.rglob("*.py")))


def is_searched(pattern: Pattern) -> bool:
    """Return True if Stallwatch searches for the pattern anywhere in a string, not only at the beginning."""
    name = pattern.place.rpartition(".")[2]
    uses = set(re.findall(rf"\b{name}\.([a-z]+)\b", _sources()))
    return not uses & {"match", "fullmatch"} or bool(uses - {"match", "fullmatch", "pattern"})


def search(report: Callable[[str], None]) -> list[Pattern]:
    """Test all patterns. Report and return those whose search time grows faster than the text length."""
    found = []
    for pattern in every_pattern():
        if (slowed := slow(pattern)) is not None:
            found.append(pattern)
            report(f"{pattern.place}: ×{slowed[0]:.0f} for four times the text, such as {slowed[1]!r}")
    report(f"{len(found)} of {len(every_pattern())} patterns need time that grows faster than the text")
    return found
