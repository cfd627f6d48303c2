"""The table of public names that were moved or removed in a release, read from ``changed_names.json``.

The docs/upgrade.md page shows the same table.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal

import msgspec

from stallwatch_rules.decoding import from_json

Kind = Literal["command", "python", "rule", "annotation", "default"]


class ChangedName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A changed name, its replacement, and instructions for users.

    Some moved names continue to work for one minor version.
    """

    kind: Kind
    old: str
    new: str
    since: str  #: the release that moved or removed the name
    advice: str
    works: bool = False


@cache
def changed_names() -> tuple[ChangedName, ...]:
    """Return the table of changed names."""
    data = files("stallwatch_rules").joinpath("changed_names.json").read_bytes()
    return from_json(data, tuple[ChangedName, ...])


def changed_name(kind: Kind, old: str) -> ChangedName | None:
    """Return the table's row for an old name, or ``None`` if the name has not changed."""
    return next((row for row in changed_names() if (row.kind, row.old) == (kind, old)), None)


def moved_attribute(module: str, name: str) -> Any:
    """Return the replacement for a moved attribute and warn about the use of the old name.

    A module calls this function from its ``__getattr__``.
    """
    row = changed_name("python", f"{module}.{name}")
    if row is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    message = f"{row.old} was replaced by {row.new} in {row.since}; the old name works only in {row.since}"
    warnings.warn(message, FutureWarning, stacklevel=3)
    place, _, new = row.new.rpartition(".")
    return getattr(import_module(place), new)
