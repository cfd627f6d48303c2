"""Define how much of a source is read, and store the state of a scan within one section of the source.

A section is a part of the source between fixed offsets. All sections have the same limits.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stallwatch_rules.text.masking import template_key

_BAR_ENDS = (b"it]", b"/s]")  # text at the end of a progress bar; a message can follow in the same line
_KEY_BYTES = 200
_RUN_WHOLE = 256 * 1024  # maximum number of bytes in the heads and tails of all sources of a run
_LEAST_WHOLE = 0.0125  # minimum factor for the length of the heads and tails in a run with many sources


@dataclass(frozen=True)
class ScanSizes:
    """Limits for reading a source, in bytes and in segments (lines, or states of a progress bar)."""

    chunk: int = 4 * 1024 * 1024
    head: int = 64 * 1024  #: number of bytes at the start of a source that are read completely
    head_segments: int = 300  #: minimum number of segments at the start of a source that are read
    tail: int = 96 * 1024  #: number of bytes at the end of a source that are read completely
    section: int = 32  #: number of chunks in a section
    dense: int = 4  #: number of chunks at the start of a section that are searched for all patterns
    dense_every: int = 8  #: one in this many later chunks is searched for all patterns

    #: Numbers of segments to read before and after the first match of a rule in a section.
    novel: tuple[int, int] = (4, 20)
    novel_windows: int = 20  #: maximum number of ``novel`` windows in a section; later matches use ``known``
    known: tuple[int, int] = (1, 4)  #: numbers of segments to read before and after later matches of a rule
    known_windows: int = 6
    neighbours: int = 3  #: maximum number of lines of one template that are read near matches

    #: Maximum number of first lines, and of last lines, of a rule that are grouped by rank in a chunk.
    ends: int = 256
    ranks: int = 65_536  #: maximum number of pairs of a rank and a rule that are distinguished in a section
    rule_lines: int = 200  #: maximum number of lines of a rule that are read; further lines are counted
    contexts: int = 64  #: maximum number of lines to read that match a pattern of ``requires``

    #: Maximum number of equal tracebacks to read. Of further tracebacks, only identifying lines are read.
    tracebacks: int = 6
    #: Maximum number of interleaved tracebacks for which many surrounding lines are read.
    torn_tracebacks: int = 20
    #: Number of segments to read after a traceback, because these segments can continue its message.
    tracebacks_after: int = 16
    templates: int = 400  #: maximum number of templates of lines that report a problem

    #: Numbers of segments to read before and after the first line of a template that reports a problem.
    template: tuple[int, int] = (2, 6)
    warnings: int = 100  #: maximum number of warnings that are read in a chunk
    samples: int = 2  #: number of lines of each kind of metrics that are read at the start of a chunk
    next_metrics: int = 3  #: number of metrics to read after the first and the last line of a rule in a chunk
    probe: int = 8 * 1024  #: number of bytes at each end of a chunk that are first searched for metrics
    turns: bool = False  #: True if the run has too many files to search all of them for all patterns
    row: int = 3  #: number of segments at the start of a dense chunk that are always read

    @classmethod
    def of_run(cls, sizes: Iterable[int]) -> ScanSizes:
        """Return the limits for a run whose sources have these sizes in bytes.

        If the run has many sources, the heads and tails to read are shorter, so fewer metrics are read. Signs
        of a failure are still found anywhere in a source.
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
        """Return the number of the first chunk of a source.

        The number depends on the source. Therefore, if there are many sources, only some of them begin with a
        dense chunk.
        """
        return (
            self.dense + zlib.crc32(source.encode(errors="replace")) % self.dense_every if self.turns else 0
        )

    def is_dense(self, place: int) -> bool:
        """Return whether the chunk with this number is dense. A dense chunk is searched for all patterns."""
        number = place % self.section
        return number < self.dense or number % self.dense_every == 0


@dataclass
class ScanState:
    """The numbers of lines and matches in a section that have been read or counted so far."""

    fired: dict[int, int] = field(default_factory=dict)  #: target → number of segments with its hits so far
    windows: int = 0
    #: final line of a traceback → number of such tracebacks
    finals: dict[bytes, int] = field(default_factory=dict)
    templates: dict[bytes, int] = field(default_factory=dict)
    #: template → number of lines that were read because they are close to a match
    neighbours: dict[bytes, int] = field(default_factory=dict)
    #: Pairs of a target and a rank for which there was a hit.
    ranks: set[tuple[int, bytes]] = field(default_factory=set)
    kinds: set[int] = field(default_factory=set)  #: kinds of metrics that were found
    carry: int = 0  #: number of segments of the next chunk that belong to a window of this chunk

    def window(self, before: int, sizes: ScanSizes) -> tuple[int, int]:
        """Return the numbers of segments to read before and after a line that a rule matches.

        `before` is the number of lines of this rule that were found earlier in the section.
        """
        if before == 0 and self.windows < sizes.novel_windows:
            self.windows += 1
            return sizes.novel
        return sizes.known if before < sizes.known_windows else (0, 0)

    def allowed(self, target: int, limit: int, wanted: int) -> int:
        """Request `wanted` segments for a target. Return the number of segments that the limit allows."""
        met = self.fired.get(target, 0)
        self.fired[target] = met + wanted
        return max(0, min(wanted, limit - met))


def template_of(text: bytes) -> bytes:
    """Return a key for a line without its numbers. Lines with the same message have the same key."""
    if b"]" in text:
        for end in _BAR_ENDS:
            text = text.rpartition(end)[2] or text
    return template_key(text[:_KEY_BYTES])
