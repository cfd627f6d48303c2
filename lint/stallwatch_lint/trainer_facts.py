"""The facts of `facts/trainers.yaml`: what trainers take, and what their arguments are by default."""

from __future__ import annotations

from typing import Any

import msgspec

from stallwatch_lint.facts import facts


class Renamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of transformers' own classes; the table explains the fields."""

    old: str
    new: str
    last: str
    first: str


class Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of classes whose names end so."""

    ending: str
    old: str
    new: str
    since: str


class _Trainers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    taken: frozenset[str]
    last_known: str
    renamed: dict[str, Renamed]
    changed: list[Changed]
    defaults: dict[str, Any]
    compared: dict[str, str]
    excuses: dict[str, str]


KNOWN = facts("trainers", _Trainers)
