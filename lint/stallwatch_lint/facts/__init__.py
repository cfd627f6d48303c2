"""Load facts about other software from data files. Each file names the sources of its facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from stallwatch_rules.decoding import convert
from stallwatch_rules.pages.frontmatter import LOADER

T = TypeVar("T")

_HERE = Path(__file__).parent


def facts(name: str, type: type[T]) -> T:
    """Read the data file `<name>.yaml` and return its content as an object of the type `type`."""
    return convert(yaml.load((_HERE / f"{name}.yaml").read_bytes(), LOADER), type)


class _Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The names from `calls.yaml`, which training scripts call or read."""

    ranks: frozenset[str]
    rank_calls: frozenset[str]
    first_rank: frozenset[str]
    collectives: frozenset[str]
    group_first: frozenset[str]
    modules: frozenset[str]
    module_names: frozenset[str]
    waits_of_accelerate: frozenset[str]
    saves_of_engine: frozenset[str]
    gathering: frozenset[str]
    reducing: frozenset[str]
    gathered_inside: frozenset[str]
    returning_itself: frozenset[str]
    reductions: frozenset[str]
    valueless: frozenset[str]


class Renamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A renamed argument of transformers classes. `trainers.yaml` explains the fields."""

    old: str
    new: str
    last: str
    first: str


class Changed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A changed argument of all classes whose names end in `ending`. `trainers.yaml` explains the fields."""

    ending: str
    old: str
    new: str
    since: str


class _Trainers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data in `trainers.yaml`: the arguments that trainers accept, and the defaults of the arguments."""

    taken: frozenset[str]
    last_known: str
    renamed: dict[str, Renamed]
    changed: list[Changed]
    defaults: dict[str, Any]
    compared: dict[str, str]
    excuses: dict[str, str]


CALLS = facts("calls", _Calls)
TRAINERS = facts("trainers", _Trainers)
