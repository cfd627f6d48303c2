"""The facts of `facts/calls.yaml`: what scripts call by name, and read."""

from __future__ import annotations

import msgspec

from stallwatch_lint.facts import facts


class _Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


CALLS = facts("calls", _Calls)
