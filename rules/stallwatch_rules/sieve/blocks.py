"""A traceback in raw segments: where it ends, and which of its lines name it."""

from __future__ import annotations

from typing import NamedTuple

from stallwatch_rules.matching.segments import Segments
from stallwatch_rules.text.lazy import lazy

MAX_BLOCK = 400  #: segments of a chain of tracebacks
_HEAD = lazy(rb"[Tt]raceback \(most recent call last\)")
_CHAIN = lazy(rb"During handling of the above exception|The above exception was the direct cause")
_CHAIN_LINES = 4  #: behind a final line, in which the chain's marker and the next head stand
_LIBRARY = lazy(rb"site-packages|dist-packages|[/\\]lib[/\\]python3|<frozen|<string>")


class Block(NamedTuple):
    """A traceback, or a chain of them."""

    behind: int  #: the first segment behind its final line
    final: bytes  #: its final line
    naming: tuple[int, ...]  #: the lines by which it is known: head, the innermost own frame, final line
    whole: bool  #: whether it is all there, with nobody else's lines in it


def block_at(segments: Segments, head: int) -> Block:
    """The traceback that begins with this segment."""
    naming: list[int] = []
    last = min(segments.count, head + MAX_BLOCK)
    while True:
        first = segments.text(head)
        found = _HEAD.search(first)
        prefix = first[: found.start()] if found else b""
        naming.append(head)
        own = any_frame = -1
        at = head + 1
        while at < last:
            text = segments.text(at)
            if not text.startswith(prefix):
                if at == head + 1 and text.startswith(b"  File "):
                    prefix = b""  # only the first line of a message has the logger's lead
                else:
                    return Block(at, b"", (), False)
            if text[len(prefix) : len(prefix) + 1] not in (b" ", b"\t", b""):
                break
            if b'File "' in text:
                any_frame = at
                if not _LIBRARY.search(text):
                    own = at
            at += 1
        if at >= last:
            return Block(at, b"", (), False)
        naming += [frame for frame in (own if own >= 0 else any_frame,) if frame >= 0]
        naming.append(at)
        chained = _chained(segments, at)
        if chained is None:
            return Block(at + 1, segments.text(at)[len(prefix) :], tuple(naming), any_frame >= 0)
        marker, head = chained
        naming.append(marker)


def _chained(segments: Segments, final: int) -> tuple[int, int] | None:
    """The marker of a chain behind a final line, and the head that follows it."""
    marker = -1
    for at in range(final + 1, min(final + 1 + _CHAIN_LINES, segments.count)):
        text = segments.text(at)
        if _CHAIN.search(text):
            marker = at
        elif marker >= 0 and _HEAD.search(text):
            return marker, at
    return None
