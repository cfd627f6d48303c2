"""Named fragments of patterns: ``${retry_words}`` on a rule page stands for a text that pages share.

They are defined in ``stallwatch_rules/fragments/*.yaml`` and put in when a page is loaded, so only the
loader knows of them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from importlib.resources import files

import msgspec

from stallwatch_rules.pages.patterns import Fault
from stallwatch_rules.text.lazy import lazy

FOLDER = files("stallwatch_rules") / "fragments"

_USE = lazy(r"(?<!\\)\$\{(?P<name>[^{}]*)\}(?P<repeated>(?=[*+?{]))?")
_DEEPEST = 4  #: fragments that use fragments; what is deeper uses itself


class Fragment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a pattern: one text, or a list of alternatives."""

    about: str  #: what it finds, in one line
    pattern: str = ""
    any_of: list[str] = []


class FragmentError(ValueError):
    """A pattern whose fragments cannot be put in."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.fault = Fault(message, remedy)


@functools.cache
def shared_fragments() -> Mapping[str, Fragment]:
    """Return the packaged fragments by name."""
    import yaml  # not needed if pages were kept from an earlier start

    found: dict[str, Fragment] = {}
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            found |= msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8")), dict[str, Fragment])
    return found


def expand(pattern: str, own: Mapping[str, str]) -> list[str]:
    """Return the pattern with its fragments put in; ``FragmentError`` if one is unknown.

    ``own`` are the texts that its page names for itself and for the fragments that it uses. A pattern that
    is nothing but a list of alternatives becomes one pattern for each of them.
    """
    known = {**shared_fragments(), **{name: Fragment("", text) for name, text in own.items()}}
    alone = _USE.fullmatch(pattern)
    if alone is None:
        return [_filled(pattern, known)]
    fragment = _fragment(alone["name"], known)
    return [_filled(text, known) for text in fragment.any_of or [fragment.pattern]]


def _filled(text: str, known: Mapping[str, Fragment], depth: int = 0) -> str:
    if depth > _DEEPEST:
        raise FragmentError(f"the fragment in {text!r} uses itself", "write out one of the two")

    def put_in(use: re.Match[str]) -> str:
        fragment = _fragment(use["name"], known)
        filled = _filled("|".join(fragment.any_of) or fragment.pattern, known, depth + 1)
        return f"(?:{filled})" if fragment.any_of or use["repeated"] is not None else filled

    return _USE.sub(put_in, text)


def _fragment(name: str, known: Mapping[str, Fragment]) -> Fragment:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean ${{{near[0]}}}?" if near else "docs/rules.md says which there are"
        raise FragmentError(f"unknown fragment ${{{name}}}", remedy)
    return known[name]
