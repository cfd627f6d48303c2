"""Versions that do not fit what a run does with them: its trainer and ZeRO stage, or how it failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stallwatch_exporter.watching.concerns import line_of
from stallwatch_lint.version_conflicts import VersionConflict
from stallwatch_rules.judgements.concerns import SEEN, evidence_of
from stallwatch_rules.records import Match

_NO_SYNC = "deepspeed-no-sync-incompatible"  #: only with gradient accumulation

Event = Mapping[str, Any]


def versions_in(event: Event) -> dict[str, str]:
    """The packages of a ``versions`` event, by their canonical names."""
    about = ("time", "kind", "count", "rank")
    found = {name: value for name, value in event.items() if name not in about and isinstance(value, str)}
    return {name.replace("_", "-"): version for name, version in found.items()}


def before_it_fails(versions: Mapping[str, str], event: Event, number: int) -> Iterator[Match]:
    """What a ``trainer`` event says that the run is going to do, and these versions cannot."""
    used, stage = event.get("classes"), event.get("stage")
    for entry in _conflicts(versions):
        if entry.severity == "advice" or entry.auto_key or not (entry.used or entry.stages):
            continue
        if entry.used and entry.used.isdisjoint(used if isinstance(used, list) else ()):
            continue
        if entry.stages and stage not in entry.stages:
            continue
        if entry.rule == _NO_SYNC and event.get("accumulation") == 1:
            continue
        yield _match(entry, versions, event, number)


def after_a_failure(versions: Mapping[str, str], event: Event, number: int) -> Iterator[Match]:
    """What fails with these versions whatever a run does; to be told where one did fail."""
    for entry in _conflicts(versions):
        if entry.severity == "fails" and not (entry.used or entry.stages or entry.auto_key):
            yield _match(entry, versions, event, number)


def _conflicts(versions: Mapping[str, str]) -> Iterable[VersionConflict]:
    from stallwatch_lint.versions import conflicts_among  # with packaging behind it: only for versions

    return conflicts_among(versions)


def _match(entry: VersionConflict, versions: Mapping[str, str], event: Event, number: int) -> Match:
    names = ", ".join(f"{package} {versions[package]}" for package in entry.ranges)
    captures = {SEEN: "versions", "fault": f"{names} do not fit: {entry.what.en}"}
    return Match(entry.rule, line_of(event, number, evidence_of(captures)), captures)
