"""Check that regular expressions of rules take linear time, match within one line, and allow fast searches.

A fragment is a part that several patterns share. A pattern contains the name of the fragment, as in
``${retry_words}``. Fragments are defined in ``stallwatch_rules/fragments/*.yaml``. They are inserted when a
page is loaded, so other modules do not handle fragments.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import msgspec
import re2

from stallwatch_rules.decoding import convert
from stallwatch_rules.text.lazy import lazy

try:
    import hyperscan as hyperscan  # other modules import hyperscan from this module
except ImportError:  # if no wheel exists for this platform, google-re2 does all searches
    hyperscan = None  # type: ignore[assignment]

_LEADING = lazy(r"\^?\(*(?:\?:|\?P<\w+>)?\.[*+]\??")
_TRAILING = lazy(r"(?<!\\)\.[*+]\??\$?$")
_ANCHORS = lazy(r"(?<!\\)(?:\\\\)*\\[AzZ]")
_FLAGS = lazy(r"(?<!\\)\(\?(?!i\)|i:|:|P<|P=|P>|=|!|<)")


class Fault(msgspec.Struct, frozen=True):
    """The reason why a pattern is rejected, and the remedy."""

    message: str
    remedy: str


def compile_re2(pattern: str, *, encoded: bool = True) -> Any:
    """Compile a google-re2 pattern for text, or for UTF-8 bytes if `encoded` is true.

    Raise ``re2.error`` if google-re2 rejects the pattern.
    """
    options = re2.Options()
    options.log_errors = False  # Stallwatch reports invalid patterns itself
    return re2.compile(pattern.encode() if encoded else pattern, options)


#: Compiler that caches patterns for repeated searches.
cached_re2 = functools.lru_cache(maxsize=8192)(compile_re2)


@functools.lru_cache(maxsize=4096)
def pattern_fault(pattern: str, *, quick: bool = False) -> Fault | None:
    """Return the reason why a pattern cannot be used, or ``None`` if the pattern can be used.

    If `quick` is True, the check with hyperscan, which takes 2 ms per pattern, is skipped.
    """
    if "\n" in pattern:
        message = "the pattern contains a line break, but a pattern matches only one line"
        return Fault(message, "write a separate pattern for each line")
    if _LEADING.match(pattern):
        return Fault(
            "it starts with an unbounded '.*'", "remove '.*': a pattern can match anywhere in the line"
        )
    if _TRAILING.search(pattern):
        return Fault("it ends with an unbounded '.*'", "remove '.*', or use a named group: (?P<message>.+)")
    if _ANCHORS.search(pattern):
        return Fault(
            r"\A, \z, and \Z are not supported", "use ^ and $, which match the start and end of the line"
        )
    if _FLAGS.search(pattern):
        remedy = "remove the flags; a pattern matches only one line"
        return Fault("inline flags other than (?i) are not supported", remedy)
    try:
        compiled = compile_re2(pattern)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        if text.startswith(("invalid perl operator", "invalid escape sequence")):
            remedy = "use RE2 syntax, which has no look-around and no back-references"
            return Fault(f"not a valid RE2 expression: {text}", remedy)
        return Fault(f"not a valid expression: {text}", "to match a special character, write \\ before it")
    if compiled.search(b"") is not None:
        return Fault("it matches an empty line", "add words that the line must contain")
    return None if quick else hyperscan_fault((pattern,))


def hyperscan_fault(patterns: tuple[str, ...]) -> Fault | None:
    """Return the reason why hyperscan cannot compile these patterns together, or ``None`` if it can."""
    if hyperscan is None or not patterns:
        return None
    try:
        compile_hyperscan(patterns)
    except hyperscan.error as error:
        return Fault(
            f"hyperscan cannot compile it: {error}",
            "simplify it, or lower the limits of repeats such as {1,2000}",
        )
    return None


@functools.lru_cache(maxsize=8)
def compile_hyperscan(patterns: tuple[str, ...], texts: tuple[tuple[str, bool], ...] = ()) -> Any:
    """Return a block-mode database for the patterns. The ID of a pattern is its position.

    `texts` are additional fixed strings. Each string has a flag that shows whether the case of ASCII letters
    is ignored. The IDs of the strings follow the IDs of the patterns. One pass for both patterns and strings
    is a third faster than two passes. Raise ``hyperscan.error`` if an expression cannot be compiled.
    """
    expressions = [widened_pattern(pattern).encode() for pattern in patterns]
    flags = [hyperscan_flags()] * len(patterns)
    for text, caseless in texts:
        expressions.append(re.escape(text.encode()))
        flags.append(hyperscan.HS_FLAG_CASELESS if caseless else 0)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=expressions, ids=list(range(len(flags))), elements=len(flags), flags=flags)
    return database


def hyperscan_flags() -> int:
    """Return the flags with which hyperscan compiles patterns.

    With MULTILINE, ``^`` and ``$`` match at the start and the end of each line. Without UTF8, a dot matches
    only one byte.
    """
    return int(hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_UTF8)


TOKEN = lazy(
    # Quoted text, character properties and codes, and escape sequences.
    r"\\Q.*?(?:\\E|$)|\\[pPx]\{[^}]*\}|\\."
    r"|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"  # character classes
    r"|\{(?P<least>\d{1,8})(?P<range>,(?P<most>\d{0,8}))?\}|(?P<start>\^)|(?P<end>\$)"
)
_TAIL = lazy(r"(?P<atom>\\[dwSD]|\[(?:\\.|[^\]\\])+\]|(?<!\\)\.)(?P<repeat>[+*])\??(?P<close>\)*)$")
#: Maximum upper bound of a repetition in patterns for hyperscan. Larger upper bounds are removed.
COUNTED = 16


# Each pattern is used several times when a catalogue is compiled or loaded.
@functools.lru_cache(maxsize=8192)
def widened_pattern(pattern: str) -> str:
    r"""Return a pattern for hyperscan that matches the same lines as `pattern` and possibly other lines.

    Counted repetitions are expensive. For example, hyperscan needs seconds to compile ``.{0,200}``, but
    almost no time for ``.*``. Hyperscan also calls back once for each possible end of a match. Therefore,
    ``loss (\d+)`` becomes ``loss (\d)``, which matches the same lines with a single end.
    """
    return _TAIL.sub(_trim, TOKEN.sub(_uncount, pattern))


def _uncount(token: re.Match[str]) -> str:
    if token["least"] is None:
        return token.group()
    most = token["most"] if token["range"] else token["least"]
    if most and int(most) <= COUNTED:
        return token.group()
    return "+" if int(token["least"]) else "*"


def _trim(tail: re.Match[str]) -> str:
    return (tail["atom"] if tail["repeat"] == "+" else "") + tail["close"]


FOLDER = files("stallwatch_rules") / "fragments"

_USE = lazy(r"(?<!\\)\$\{(?P<name>[^{}]*)\}(?P<repeated>(?=[*+?{]))?")
_DEEPEST = 4  #: maximum nesting of fragments; deeper nesting means that a fragment contains itself


class Fragment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A shared part of patterns: a single pattern or a list of alternatives."""

    about: str  #: description, in one line, of the text that the fragment matches
    pattern: str = ""
    any_of: list[str] = []


class FragmentError(ValueError):
    """An error for a pattern that contains an unknown fragment, or for a fragment that contains itself."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.fault = Fault(message, remedy)


@functools.cache
def shared_fragments() -> Mapping[str, Fragment]:
    """Return the packaged fragments, keyed by name."""
    import yaml  # imported here, because YAML is not needed if the pages are cached

    found: dict[str, Fragment] = {}
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            found |= convert(yaml.safe_load(file.read_text(encoding="utf-8")), dict[str, Fragment])
    return found


def expand(pattern: str, page_fragments: Mapping[str, str]) -> list[str]:
    """Return the pattern with its fragments inserted. Raise ``FragmentError`` if a fragment is unknown.

    `page_fragments` maps the names of the page's own fragments to their texts. A pattern that consists only
    of a fragment with alternatives becomes several patterns, one for each alternative.
    """
    known = {**shared_fragments(), **{name: Fragment("", text) for name, text in page_fragments.items()}}
    alone = _USE.fullmatch(pattern)
    if alone is None:
        return [_filled(pattern, known)]
    fragment = _fragment(alone["name"], known)
    return [_filled(text, known) for text in fragment.any_of or [fragment.pattern]]


def _filled(text: str, known: Mapping[str, Fragment], depth: int = 0) -> str:
    if depth > _DEEPEST:
        remedy = "replace one of the references with its text"
        raise FragmentError(f"the fragment in {text!r} refers to itself", remedy)

    def put_in(use: re.Match[str]) -> str:
        fragment = _fragment(use["name"], known)
        filled = _filled("|".join(fragment.any_of) or fragment.pattern, known, depth + 1)
        return f"(?:{filled})" if fragment.any_of or use["repeated"] is not None else filled

    return _USE.sub(put_in, text)


def _fragment(name: str, known: Mapping[str, Fragment]) -> Fragment:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean ${{{near[0]}}}?" if near else "see the list of fragments in docs/rules.md"
        raise FragmentError(f"unknown fragment ${{{name}}}", remedy)
    return known[name]
