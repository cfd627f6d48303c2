"""Check one value of the configuration. Values come from TOML or are parsed from text."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from stallwatch.config.keys import Key
from stallwatch_exporter.settings import user_path

# A comma inside an Apprise URL is part of the URL. A comma or whitespace before the next scheme separates
# URLs.
_BETWEEN_URLS = re.compile(r"(?<![,\s])[,\s]+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_AROUND_URLS = ", \t\r\n"
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True}
_BOOLEANS |= {"false": False, "0": False, "no": False, "off": False}


class BadValue(ValueError):
    """An error in a configuration value. The message contains the reason, but never a secret."""


def _listed(text: str) -> list[str]:
    return text.split(",")


def _urls(text: str) -> list[str]:
    return [url.strip(_AROUND_URLS) for url in _BETWEEN_URLS.split(text)]


class _Kind(NamedTuple):
    wanted: str
    example: str = ""  #: example in TOML; defaults to the key's default or its choices
    types: tuple[type, ...] = (str,)  #: allowed types of the value in TOML
    parse: Callable[[str], Any] = str  #: parser of an environment variable's text


_LIST, _REACTIONS = "a list of strings", '"report", "abort" or "command scontrol requeue $SLURM_JOB_ID"'
_KINDS = {
    "text": _Kind("a string", '"…"'),
    "web": _Kind("a string", '"https://…"'),
    "path": _Kind("a string", '"folder/file"'),
    "choice": _Kind("a string"),
    "reaction": _Kind("a string", _REACTIONS),
    "int": _Kind("a whole number", types=(int,), parse=int),
    "number": _Kind("a number", types=(int, float), parse=float),
    "bool": _Kind("true or false", "true or false", (bool,), lambda text: _BOOLEANS[text.lower()]),
    "texts": _Kind(_LIST, '["node7:19400"]', (list,), _listed),
    "paths": _Kind(_LIST, '["my-rules"]', (list,), _listed),
    "urls": _Kind(_LIST, '["slack://…"]', (list,), _urls),
    # Patterns can contain commas, so line breaks separate them.
    "patterns": _Kind(_LIST, "['ACME-[0-9A-F]{16}']", (list,), str.splitlines),
    "routes": _Kind("tables"),
}


def example(key: Key) -> str:
    """Return an example of a value for the key, in TOML."""
    choices = " or ".join(f'"{choice}"' for choice in key.choices)
    return _KINDS[key.kind].example or choices or str(key.default)


def sound_entries(key: Key, value: Any) -> tuple[Any, list[BadValue]]:
    """Return the usable entries of a list and a problem for each unusable entry.

    An unusable chat must not disable the other chats. A value that is not a list is returned unchanged.
    """
    if not isinstance(value, list) or _KINDS[key.kind].wanted != _LIST:
        return value, []
    sound, wrong = [], []
    for number, item in enumerate(value, 1):
        if not isinstance(item, str):
            wrong.append(BadValue(f"must be {_LIST}: entry {number} is {type_of(item)}, and is ignored"))
        elif reason := _pattern_problem(key, item):
            wrong.append(BadValue(f"entry {number} is ignored: {reason}"))
        else:
            sound.append(item)
    return sound, wrong


def _pattern_problem(key: Key, text: str) -> str:
    if key.kind != "patterns":
        return ""
    from stallwatch_rules.text.redact import pattern_problem

    return pattern_problem(text)


def from_toml(key: Key, value: Any, folder: Path) -> Any:
    """Check a value from TOML and return it. Paths are relative to the configuration file's `folder`."""
    kind = _KINDS[key.kind]
    if type(value) not in kind.types:
        raise BadValue(f"must be {kind.wanted}, not {type_of(value)}")
    return _checked(key, value, folder)


def from_text(key: Key, text: str, folder: Path) -> Any:
    """Parse and check the text of an environment variable. Commas separate the entries of lists."""
    if key.kind == "routes":
        raise BadValue("can be set only in a configuration file")
    kind = _KINDS[key.kind]
    try:
        value = kind.parse(text.strip())
    except (ValueError, KeyError):
        raise BadValue(f"must be {kind.wanted}, not {text!r}") from None
    return _checked(key, value, folder)


def _checked(key: Key, value: Any, folder: Path) -> Any:
    if key.kind == "choice" and value not in key.choices:
        raise BadValue(f"must be one of {', '.join(key.choices)}, not {value!r}")
    if key.kind == "reaction":
        return _reaction(value.strip())
    if key.kind == "web":
        return _web(value.strip())
    if key.kind in ("int", "number"):
        # Infinity, NaN, and integers that are too large for a float are rejected.
        if not key.lowest <= value <= min(key.highest, sys.float_info.max):
            raise BadValue(f"must be {_range(key.lowest, key.highest)}, not {value}")
        return float(value) if key.kind == "number" else value
    if key.kind == "path":
        return _path(value, folder) if value else None
    if isinstance(value, list):
        if reason := next((why for item in value if (why := _pattern_problem(key, item))), ""):
            raise BadValue(f"contains an invalid pattern: {reason}")
        items = [item.strip() for item in value if item.strip()]
        return tuple(_path(item, folder) for item in items) if key.kind == "paths" else tuple(items)
    return value


def _reaction(text: str) -> str:
    """Check a reaction to a stall: ``report``, ``abort``, or ``command`` followed by a shell command line."""
    word, _, line = text.partition(" ")
    if word == "command" and line.strip():
        return f"command {line.strip()}"
    if word not in ("report", "abort") or line:
        raise BadValue(f"must be report, abort, or command followed by a command line, not {text!r}")
    return text


def _web(text: str) -> str:
    """Check a web address, which can be empty. Errors do not quote it, because it can contain a secret."""
    if text and not re.match(r"https?://[^/?#\s]+\S*$", text, re.IGNORECASE):
        raise BadValue("must be an address that begins with http:// or https://")
    return text


def _path(text: str, folder: Path) -> Path:
    try:
        return user_path(text, folder)
    except ValueError as error:
        raise BadValue(str(error)) from None


def _range(low: float, high: float) -> str:
    return f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"


def type_of(value: Any) -> str:
    """Return the name of a TOML value's type for error messages."""
    names = {bool: "true or false", str: "a string", list: "a list", dict: "a table"}
    names |= {int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that is most similar to `name`, or "" if no name is similar enough."""
    return _nearest(name, tuple(known), cutoff)


def did_you_mean(near: str) -> str:
    """Return a question about the nearest name, followed by a space, or "" if there is no such name."""
    return f"did you mean {near}? " if near else ""


@lru_cache  # the same mistake often occurs in many tables
def _nearest(name: str, known: tuple[str, ...], cutoff: float) -> str:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")
