"""Streams of what ranks and the agent report, beside those of the log."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from stallwatch_rules.failures.launchers import LauncherSummary
from stallwatch_rules.stream import StreamReading

SOURCE = "events.jsonl"  #: the file of a run's folder in which it is kept

Key = tuple[str, int | None]
NO_CODES: Mapping[int, int] = MappingProxyType({})


def without_echoes(streams: Mapping[Key, StreamReading]) -> Mapping[Key, StreamReading]:
    """The streams, without what ranks told of themselves that the log says as well.

    Each failure counts once, by the log's line. What the ranks said of it, such as a parameter's name,
    stands behind the log's lines as evidence.
    """
    logged = {rule for (source, _), stream in streams.items() if source != SOURCE for rule in stream.hits}
    echoes: dict[str, list[str]] = {}
    for (source, _), stream in streams.items():
        if source == SOURCE:
            for rule in logged & stream.hits.keys():
                echoes.setdefault(rule, []).extend(stream.hits[rule].exemplars)
    if not echoes:
        return streams
    return {
        key: _without(stream, logged) if key[0] == SOURCE else _with(stream, echoes)
        for key, stream in streams.items()
    }


def with_codes(
    streams: Mapping[Key, StreamReading], codes: Mapping[int, int | None]
) -> Mapping[Key, StreamReading]:
    """The streams, with the exit codes of ranks as a launcher tells them, if none does.

    `codes` are those of the ranks that failed, in the order of their ends, as who watched them saw.
    """
    if not codes or any(stream.summary.codes for stream in streams.values()):
        return streams
    told = copy.copy(streams.get((SOURCE, None)) or StreamReading(SOURCE, None, frozenset()))
    told.summary = LauncherSummary.seen(codes)
    return {**streams, (SOURCE, None): told}


def _without(stream: StreamReading, rules: set[str]) -> StreamReading:
    left = copy.copy(stream)
    left.hits = {rule: hits for rule, hits in stream.hits.items() if rule not in rules}
    return left


def _with(stream: StreamReading, echoes: Mapping[str, list[str]]) -> StreamReading:
    if echoes.keys().isdisjoint(stream.hits):
        return stream
    more = copy.copy(stream)
    more.hits = {
        rule: replace(hits, exemplars=[*hits.exemplars[:2], *echoes[rule]]) if rule in echoes else hits
        for rule, hits in stream.hits.items()
    }
    return more
