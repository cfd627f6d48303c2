"""A rule's matches counted without reading their lines, once enough of them were read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_rules.lines.leads import Lead
from stallwatch_rules.lines.reader import MAX_LINE, LineReader
from stallwatch_rules.matching.rawpatterns import anchored, certain
from stallwatch_rules.matching.segments import Segments
from stallwatch_rules.pages.patterns import compile_re2
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Units = NDArray[np.int64]

# Where a line may name its rank, or not be the run's: then each is looked at.
_MARKED = lazy(rb"[Rr]ank[ _\]\d]|\[default\d|\[trainer\d|\[worker\d|<std(?:out|err)>|stallwatch:")
# The usual prefixes of launchers; the last of several counts.
_LEAD = lazy(rb"(?:\[(?:rank|default)(\d{1,6})\]: ?)+")


class Target(NamedTuple):
    """A rule, or a rule's context, whose lines are counted together."""

    rule: str
    patterns: tuple[str, ...]
    matches: Callable[[Line], bool]  #: whether the rule fires on the line, once it is read
    is_context: bool = False

    @property
    def sure(self) -> bool:
        """Whether every place that is found is a match."""
        return all(certain(pattern) for pattern in self.patterns)

    @property
    def free(self) -> bool:
        """Whether its patterns match a raw line where they match the line that is made of it."""
        return not any(anchored(pattern) for pattern in self.patterns)


class RawRules(NamedTuple):
    """The catalogue's rules as targets of a scan, and to which of them each pattern belongs."""

    targets: tuple[Target, ...]
    sure: tuple[bool, ...]
    free: tuple[bool, ...]
    by_progress: tuple[bool, ...]  #: whether the steps around its matches tell what they did
    target_of: tuple[int, ...]  #: of each pattern of the scan, also those that are no rule's


class Bulk:
    """Groups the matches of one rule in one cell by what their lines name as their rank.

    Behind a ``lead`` each is read: only then is it clear where its line starts.
    """

    def __init__(
        self, rules: RawRules, target: int, segments: Segments, view: bytes, lead: Lead | None = None
    ) -> None:
        self._target = rules.targets[target]
        self._segments = segments
        self._lead = lead
        self._plain = lead is None and not segments.recorded
        self._marked = _MARKED.search(view) is not None
        self._sure = rules.sure[target] and self._plain
        self._free = rules.free[target] and self._plain

    def groups(self, units: Units) -> list[list[int]]:
        """The segments of each group, in their order."""
        if self._sure and not self._marked:
            return [units.tolist()] if len(units) else []
        found: dict[int | None, list[int]] = {}
        for unit in units.tolist():
            for rank in self._ranks(unit):
                found.setdefault(rank, []).append(unit)
        return list(found.values())

    def _ranks(self, unit: int) -> Iterable[int | None]:
        """The ranks whose line this is, if it is a match: mostly one, none where it is not."""
        text = self._segments.text(unit)[:MAX_LINE]
        lead = _LEAD.match(text)
        if self._plain and not _MARKED.search(text, lead.end() if lead else 0):
            if not self._sure and not self._free:
                return self._read(unit)
            if self._sure or any(compile_re2(one).search(text) for one in self._target.patterns):
                return (int(lead[1]) if lead else None,)
            return ()
        return self._read(unit)

    def _read(self, unit: int) -> Iterable[int | None]:
        segments = self._segments
        reader = LineReader("", lead=self._lead)
        raw = segments.record_head(unit) + segments.raw(unit, unit + 1)
        return {line.rank for line in [*reader.feed(raw), *reader.finish()] if self._fires(line)}

    def _fires(self, line: Line) -> bool:
        return not line.text.startswith("stallwatch:") and (self._sure or self._target.matches(line))


def targets_of(
    parts: Sequence[tuple[str, str, bool]], matches: Callable[[str, bool, Line], bool]
) -> list[Target]:
    """The targets of (rule, pattern, is context) in the matcher's order."""
    grouped: dict[tuple[str, bool], list[str]] = {}
    for rule, pattern, is_context in parts:
        grouped.setdefault((rule, is_context), []).append(pattern)
    return [
        Target(
            rule,
            tuple(patterns),
            lambda line, rule=rule, is_context=is_context: matches(rule, is_context, line),  # type: ignore[misc]
            is_context,
        )
        for (rule, is_context), patterns in grouped.items()
    ]
