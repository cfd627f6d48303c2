"""Whose output a file holds, where its name has a number that only its lines prove to be a rank.

``worker-3.log`` may be a node's, a pod's or a rank's. Where several files are numbered like it, and the first
lines of each name one rank and no other, the file's own number, each holds that rank's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from stallwatch_rules.text.lazy import lazy

HEAD = 64 * 1024  #: bytes of each file that are looked at
MOST_FILES = 4096  #: of a family, beyond which nothing is asked
_NUMBERED = lazy(r"(?P<before>.*?[._-])(?P<number>\d{1,4})(?P<behind>\.(?:log|out|err|txt))?")
# As loggers name their rank, and Ascend's CANN: what a LoRA's configuration says is another number, or none.
_NAMED = lazy(rb"(?<![A-Za-z_])(?:[Rr]ank[ _]?|[Rr]ank(?:ID|_id)? ?[:=] ?|RANK ?[:=] ?)(\d{1,6})(?![\d.])")
_ENOUGH = 2  # times that a file names it


def ranks_in_lines(paths: Mapping[str, str]) -> dict[str, int]:
    """The ranks of such files: by the names in ``paths``, whose values say where each can be read."""
    families: dict[tuple[str, str], dict[int, str]] = {}
    for name in paths:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            family = families.setdefault((found["before"], found["behind"] or ""), {})
            family[int(found["number"])] = name
    ranks: dict[str, int] = {}
    for family in families.values():
        if 2 <= len(family) <= MOST_FILES and all(
            _names_only(number, paths[name]) for number, name in _ends_first(family.items())
        ):
            ranks |= {name: number for number, name in family.items()}
    return ranks


def of_one_training(jobs: Mapping[str, Iterable[str]]) -> bool:
    """Whether jobs, given with the paths of their files, are ranks or nodes: each one's lines name its own.

    Those are from 0 on without a gap, and none is named by two. Asks no more files than it must.
    """
    seen: set[int] = set()
    for paths in jobs.values():
        own = {rank for path in paths for rank in _named(path)}
        if not own or own & seen:
            return False
        seen |= own
    return seen == set(range(len(seen)))


def _ends_first(family: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The highest number first: a rank of its own is there the least likely by chance."""
    return sorted(family, reverse=True)


def _names_only(number: int, path: str) -> bool:
    named = _named(path)
    return len(named) >= _ENOUGH and set(named) == {number}


def _named(path: str) -> list[int]:
    """The ranks that a file's first lines name, as often as they do."""
    try:
        with Path(path).open("rb") as file:
            return [int(found) for found in _NAMED.findall(file.read(HEAD))]
    except (OSError, ValueError):
        return []
