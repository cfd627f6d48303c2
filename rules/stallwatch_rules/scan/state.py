"""Define how much of a source is read, and keep the state of a scan within one section of the source.

A section is a part of the source between fixed offsets. All sections have the same budgets.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stallwatch_rules.text.masking import template_key

_BAR_ENDS = (b"it]", b"/s]")  # ends of a progress bar; a message can follow on the same line
_KEY_BYTES = 200
_RUN_WHOLE = 256 * 1024  # maximum total number of bytes in the heads and tails of a run
_LEAST_WHOLE = 0.0125  # minimum factor by which the heads and tails of a run are shortened


@dataclass(frozen=True)
class ScanSizes:
    """Limits for what is read of a source, in bytes and in segments (lines, or states of a progress bar)."""

    chunk: int = 4 * 1024 * 1024
    head: int = 64 * 1024  #: number of bytes at a source's start that are read completely
    head_segments: int = 300  #: minimum number of segments at a source's start that are read
    tail: int = 96 * 1024  #: number of bytes at a source's end that are read completely
    section: int = 32  #: number of chunks in a section
    dense: int = 4  #: number of chunks at a section's start that are searched for everything
    dense_every: int = 8  #: one in this many later chunks is searched for everything
    novel: tuple[int, int] = (4, 20)  #: segments to read before and after a rule's first match in a section
    novel_windows: int = 20  #: maximum number of ``novel`` windows in a section; then ``known`` applies
    known: tuple[int, int] = (1, 4)  #: segments to read before and after a rule's next matches
    known_windows: int = 6
    neighbours: int = 3  #: maximum number of lines of one template that are read around matches
    ends: int = 256  #: number of a rule's first lines and last lines in a chunk that are grouped by rank
    ranks: int = 65_536  #: maximum number of pairs of rank and rule that are distinguished in a section
    rule_lines: int = 200  #: maximum number of a rule's lines to read in full; more lines are counted
    contexts: int = 64  #: maximum number of lines that are read because another rule requires them
    tracebacks: int = 6  #: maximum number of equal tracebacks to read; of others, only identifying lines
    torn_tracebacks: int = 20  #: maximum number of interleaved tracebacks around which many lines are read
    tracebacks_after: int = 16  #: number of segments read after a traceback, which can continue its message
    templates: int = 400  #: maximum number of templates of lines that report a problem
    template: tuple[int, int] = (2, 6)  #: segments to read before and after the first line of a template
    warnings: int = 100  #: maximum number of warnings that are read in a chunk
    samples: int = 2  #: number of lines of each kind of metric that are read first in a chunk
    next_metrics: int = 3  #: number of metrics that are read after a rule's first and last line in a chunk
    probe: int = 8 * 1024  #: number of bytes at each end of a chunk that are searched first for metrics
    turns: bool = False  #: True if there are too many files to search all of them for everything
    row: int = 3  #: number of segments at a dense chunk's start that are always read

    @classmethod
    def of_run(cls, sizes: Iterable[int]) -> ScanSizes:
        """Return the limits for sources of these sizes in bytes. Of many sources, less is read of each.

        The heads and tails are shorter, so fewer metrics are read. Signs of a failure are found anywhere in a
        source.
        """
        usual = cls()
        usually = usual.head + usual.tail
        share = _RUN_WHOLE / max(1, sum(min(size, usually) for size in sizes))
        if share >= 1:
            return usual
        share = max(share, _LEAST_WHOLE)
        return replace(
            usual,
            head=int(usual.head * share),
            head_segments=int(usual.head_segments * share),
            tail=int(usual.tail * share),
            turns=share == _LEAST_WHOLE,
        )

    def first_chunk(self, source: str) -> int:
        """Return the number with which the chunks of a source begin.

        It depends on the source, so that of many sources only some begin with a dense chunk.
        """
        return (
            self.dense + zlib.crc32(source.encode(errors="replace")) % self.dense_every if self.turns else 0
        )

    def is_dense(self, place: int) -> bool:
        """Return whether the chunk with this number is dense, that is, searched for all patterns."""
        number = place % self.section
        return number < self.dense or number % self.dense_every == 0


@dataclass
class ScanState:
    """The numbers of lines and matches that were read or counted within a section."""

    fired: dict[int, int] = field(default_factory=dict)  #: target → number of segments so far
    windows: int = 0
    finals: dict[bytes, int] = field(default_factory=dict)  #: final line → number of its tracebacks
    templates: dict[bytes, int] = field(default_factory=dict)
    neighbours: dict[bytes, int] = field(default_factory=dict)  #: template → lines read around matches
    ranks: set[tuple[int, bytes]] = field(default_factory=set)  #: pairs of target and rank with a hit
    kinds: set[int] = field(default_factory=set)  #: kinds of metrics found
    carry: int = 0  #: number of segments of the next chunk that belong to a window of this chunk

    def window(self, before: int, sizes: ScanSizes) -> tuple[int, int]:
        """Return how many segments before and after a rule's line are read.

        The numbers depend on how many lines of the rule were read before.
        """
        if before == 0 and self.windows < sizes.novel_windows:
            self.windows += 1
            return sizes.novel
        return sizes.known if before < sizes.known_windows else (0, 0)

    def allowed(self, target: int, limit: int, wanted: int) -> int:
        """Request ``wanted`` segments for a target. Return how many of them the limit allows to read."""
        met = self.fired.get(target, 0)
        self.fired[target] = met + wanted
        return max(0, min(wanted, limit - met))


def template_of(text: bytes) -> bytes:
    """Return a key for a line without its numbers. All lines of the same message have the same key."""
    if b"]" in text:
        for end in _BAR_ENDS:
            text = text.rpartition(end)[2] or text
    return template_key(text[:_KEY_BYTES])
