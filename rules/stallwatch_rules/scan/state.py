"""How much of a source is read, and what a scan remembers within one section of it.

A section is a part of the source at fixed offsets: each has the same budgets, however long the source is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stallwatch_rules.text.masking import template_key

_BAR_ENDS = (b"it]", b"/s]")  # a message may follow a progress bar that it found in its line
_KEY_BYTES = 200
_RUN_WHOLE = 256 * 1024  # bytes of a run's heads and tails together
_LEAST_WHOLE = 0.0125  # of a source's head and tail are read however many sources there are


@dataclass(frozen=True)
class ScanSizes:
    """How much is read, in bytes and in segments (a line, or a drawing of a progress bar)."""

    chunk: int = 4 * 1024 * 1024
    head: int = 64 * 1024  #: of a source, read whole
    head_segments: int = 300  #: and at least so many
    tail: int = 96 * 1024  #: bytes of a source's end, read whole
    section: int = 32  #: chunks
    dense: int = 4  #: chunks at a section's start, in which everything is looked for
    dense_every: int = 8  #: behind them, so many have one of these
    novel: tuple[int, int] = (4, 20)  #: segments before and behind a rule's first match in a section
    novel_windows: int = 20  #: so many; what is new after them has the small window
    known: tuple[int, int] = (1, 4)  #: around its next matches
    known_windows: int = 6
    neighbours: int = 3  #: lines of one template around matches that are read
    ends: int = 256  #: of a rule's lines in a chunk, at both ends, of which ranks are told apart
    ranks: int = 65_536  #: times rules, that are told apart in a section
    rule_lines: int = 200  #: that are read; others are only counted, except a chunk's first and last
    contexts: int = 64  #: lines that meet what another rule requires
    tracebacks: int = 6  #: of one final line that are read whole; of the others only what names them
    torn_tracebacks: int = 20  #: with other lines in them, around which much is read
    tracebacks_after: int = 16  #: segments behind a traceback, where its message may go on
    templates: int = 400  #: of lines that say that something is wrong
    template: tuple[int, int] = (2, 6)  #: segments before and behind the first line of one
    warnings: int = 100  #: of a chunk that are looked at
    samples: int = 2  #: lines of each kind of metric at a chunk's start
    next_metrics: int = 3  #: behind the first and the last of a rule's lines in a chunk
    probe: int = 8 * 1024  #: bytes at a chunk's two ends in which they are looked for first
    turns: bool = False  #: files are so many that not in each of them everything is looked for
    row: int = 3  #: segments at a dense chunk's start that are read whatever they say

    @classmethod
    def of_run(cls, sizes: Iterable[int]) -> ScanSizes:
        """Return the sizes for sources of so many bytes: the more there are, the less of each is read.

        What tells of a failure is found wherever it stands, so only the numbers between get fewer.
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
        """Return as which chunk of a section the first one of a source counts: of many, some are dense."""
        return (
            self.dense + zlib.crc32(source.encode(errors="replace")) % self.dense_every if self.turns else 0
        )

    def is_dense(self, place: int) -> bool:
        """Whether everything is looked for in the chunk at this place."""
        number = place % self.section
        return number < self.dense or number % self.dense_every == 0


@dataclass
class ScanState:
    """Counts within a section."""

    fired: dict[int, int] = field(default_factory=dict)  #: by target, segments so far
    windows: int = 0
    finals: dict[bytes, int] = field(default_factory=dict)  #: tracebacks by their final line
    templates: dict[bytes, int] = field(default_factory=dict)
    neighbours: dict[bytes, int] = field(default_factory=dict)  #: lines read around matches, by template
    ranks: set[tuple[int, bytes]] = field(default_factory=set)  #: rules that fired, and the rank's name
    kinds: set[int] = field(default_factory=set)  #: kinds of metrics met
    carry: int = 0  #: segments of the next chunk that belong to a window of the last

    def window(self, before: int, sizes: ScanSizes) -> tuple[int, int]:
        """How much to read around a rule's line, when ``before`` lines of it were met."""
        if before == 0 and self.windows < sizes.novel_windows:
            self.windows += 1
            return sizes.novel
        return sizes.known if before < sizes.known_windows else (0, 0)

    def allowed(self, target: int, limit: int, wanted: int) -> int:
        """How many of ``wanted`` further segments may be read before a limit is met; they are counted."""
        met = self.fired.get(target, 0)
        self.fired[target] = met + wanted
        return max(0, min(wanted, limit - met))


def template_of(text: bytes) -> bytes:
    """A line without its figures: lines of one message have the same."""
    if b"]" in text:
        for end in _BAR_ENDS:
            text = text.rpartition(end)[2] or text
    return template_key(text[:_KEY_BYTES])
