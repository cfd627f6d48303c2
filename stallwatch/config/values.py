"""One value of the configuration: checked when it comes from TOML, parsed when it comes as text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from stallwatch.config.keys import Key

# A comma inside an Apprise URL is part of it; one in front of the next scheme separates, and so do blanks.
_BETWEEN_URLS = re.compile(r"[,\s]+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_AROUND_URLS = ", \t\r\n"
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True}
_BOOLEANS |= {"false": False, "0": False, "no": False, "off": False}
_WANTED = {
    "text": "a string",
    "path": "a string",
    "int": "a whole number",
    "number": "a number",
    "choice": "a string",
    "bool": "true or false",
    "texts": "a list of strings",
    "paths": "a list of strings",
    "urls": "a list of strings",
    "reaction": "a string",
}


class BadValue(ValueError):
    """Why a value cannot be used. Never quotes a secret."""


def sound_entries(key: Key, value: Any) -> tuple[Any, list[BadValue]]:
    """A list without its entries that are no strings, and what these are; anything else as it is.

    One wrong chat must not silence the others.
    """
    if not isinstance(value, list) or not _WANTED.get(key.kind, "").startswith("a list"):
        return value, []
    wrong = [
        BadValue(f"must be {_WANTED[key.kind]}: entry {number} is {type_of(item)}, and is left out")
        for number, item in enumerate(value, 1)
        if not isinstance(item, str)
    ]
    return [item for item in value if isinstance(item, str)], wrong


def from_toml(key: Key, value: Any, folder: Path) -> Any:
    """The checked value; paths are relative to the configuration file's `folder`."""
    good = {
        "text": isinstance(value, str),
        "path": isinstance(value, str),
        "choice": isinstance(value, str),
        "reaction": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
    }.get(key.kind, isinstance(value, list) and all(isinstance(item, str) for item in value))
    if not good:
        raise BadValue(f"must be {_WANTED[key.kind]}, not {type_of(value)}")
    return _checked(key, value, folder)


def from_text(key: Key, text: str, folder: Path) -> Any:
    """The value that a variable spells; lists are separated by commas."""
    value: Any = text.strip()
    if key.kind == "routes":
        raise BadValue("can stand in the file only")
    try:
        if key.kind == "int":
            value = int(value)
        elif key.kind == "number":
            value = float(value)
        elif key.kind == "bool":
            value = _BOOLEANS[value.lower()]
    except (ValueError, KeyError):
        raise BadValue(f"must be {_WANTED[key.kind]}, not {text!r}") from None
    if key.kind == "urls":
        value = [url.strip(_AROUND_URLS) for url in _BETWEEN_URLS.split(value)]
    elif key.kind in ("texts", "paths"):
        value = value.split(",")
    return _checked(key, value, folder)


def _checked(key: Key, value: Any, folder: Path) -> Any:
    if key.kind == "choice" and value not in key.choices:
        raise BadValue(f"must be one of {', '.join(key.choices)}, not {value!r}")
    if key.kind == "reaction":
        return _reaction(value.strip())
    if key.kind in ("int", "number"):
        low, high = key.lowest, key.highest
        if (
            not math.isfinite(value)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            raise BadValue(f"must be {_range(low, high)}, not {value}")
        return float(value) if key.kind == "number" else value
    if key.kind == "path":
        return _path(value, folder) if value else None
    if key.kind in ("texts", "paths", "urls"):
        items = [item.strip() for item in value if item.strip()]
        if key.kind == "paths":
            return tuple(_path(item, folder) for item in items)
        return tuple(items)
    return value


def _reaction(text: str) -> str:
    """``report``, ``abort``, or ``command `` with a line for the shell behind it."""
    word, _, line = text.partition(" ")
    if word == "command" and line.strip():
        return f"command {line.strip()}"
    if word not in ("report", "abort") or line:
        raise BadValue(f"must be report, abort, or command with a command line behind it, not {text!r}")
    return text


def _path(text: str, folder: Path) -> Path:
    from stallwatch_exporter.settings import user_path

    try:
        return user_path(text, folder)
    except ValueError as error:
        raise BadValue(str(error)) from None


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"between {low:g} and {high:g}"
    return f"at least {low:g}" if low is not None else "a finite number"


def type_of(value: Any) -> str:
    """What a TOML value is, in words."""
    names = {bool: "true or false", str: "a string", list: "a list", dict: "a table"}
    names |= {int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
