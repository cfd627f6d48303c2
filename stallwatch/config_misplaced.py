"""What stands at the top of the file and is no section: a key that belongs under one, or a misspelt name."""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple

from stallwatch.config_keys import KEYS, SECTIONS

_CHATS = ("urls", "escalate_urls")
_LISTS = ("urls", "texts", "paths", "routes")
_LIKENESS = 0.6


class Misplaced(NamedTuple):
    """What to say of it."""

    message: str
    remedy: str
    key: str  #: the section or the key that was meant; empty where that is not known
    chats: bool  #: whether chats are written there, which are not told


def misplaced(name: str, value: Any) -> Misplaced:
    """Of a name at the top of the file that no section has."""
    chats = _names_chats({name: value})
    several = isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
    tables = several or isinstance(value, dict)
    if found := _keys_like(name, value, tables):
        key, sections = found
        places = " or ".join(f"[[{one}.{key}]]" if tables else f"[{one}]" for one in sections)
        said = f"unknown key {name} outside of any section"
        meant = f"{sections[0]}.{key}" if len(sections) == 1 else ""
        if tables:
            return Misplaced(said, f"write {places}", meant, chats)
        written = name if name == key else f"{key} (not {name})"
        return Misplaced(said, f"write {written} below a line {places}", meant, chats)
    near = difflib.get_close_matches(name, SECTIONS, n=1, cutoff=_LIKENESS)
    did_you = f"did you mean {near[0]}? " if near else ""
    return Misplaced(
        f"unknown section [{name}]", f"{did_you}known are {', '.join(SECTIONS)}", (near or [""])[0], chats
    )


def elsewhere(name: str) -> list[str]:
    """The sections that have a key of this very name."""
    return [key.section for key in KEYS if key.name == name]


def _keys_like(name: str, value: Any, tables: bool) -> tuple[str, list[str]] | None:
    """The key of this name, or the one that is nearest, with the sections that have it."""
    kinds = ("routes",) if tables else _LISTS if isinstance(value, list) else ()
    known = sorted({key.name for key in KEYS if not kinds or key.kind in kinds})
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS)
    if not near:
        return None
    if near[0] != name and difflib.get_close_matches(name, [*SECTIONS, near[0]], n=1, cutoff=0)[0] != near[0]:
        return None  # rather a section's name
    return near[0], elsewhere(near[0])


def _names_chats(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_names_chats, value))
    return isinstance(value, dict) and any(
        (bool(inner) and bool(difflib.get_close_matches(name, _CHATS, n=1, cutoff=0.8)))
        or _names_chats(inner)
        for name, inner in value.items()
    )
