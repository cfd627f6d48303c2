"""Every place in the user's logs where a rule fires, file by file."""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Callable, Iterator, Sequence

from stallwatch_exporter.files.heads import HEAD, broken_at
from stallwatch_exporter.files.inputs import Limits
from stallwatch_exporter.files.logfiles import LogFile, expand
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.matching.signatures import Signature, SignatureRules, SignatureScan

ProgressTold = Callable[[int, int], None]
"""Told how many bytes of how many (on disk) were read."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Matching:
    """Looks for rules in the files of some paths; what could not be read is in ``problems``.

    What a rule requires of the lines around it is not looked at, nor what its match means for the run: a
    diagnosis does that.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        matcher: Matcher,
        *,
        progress: ProgressTold | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.files, self.problems = expand(paths, limits=limits)
        self._matcher = matcher
        self._rules = SignatureRules(matcher) if matcher.engine == "hyperscan" else None
        self._progress = progress
        self._total = sum(file.size for file in self.files)
        self._done = 0

    def matches(self) -> Iterator[Signature]:
        """All of them: the files in their order, each file's lines in theirs."""
        for file in self.files:
            chunks = self._chunks(file)
            head = next(chunks, b"")
            portions = itertools.chain([head], chunks)
            if self._rules is None or len(head) < HEAD or head[:2] in _UTF16:
                yield from self._line_by_line(LineReader(file.name, file.rank, broken_at(head)), portions)
                continue
            scan = SignatureScan(self._rules, file.name, file.rank)
            for portion in portions:
                yield from scan.feed(portion)
            yield from scan.finish()

    def _line_by_line(self, reader: LineReader, portions: Iterator[bytes]) -> Iterator[Signature]:
        """Short files, in which the lines around a line may explain it, and whatever cannot be scanned."""
        for portion in itertools.chain(portions, [None]):
            lines = reader.finish() if portion is None else reader.feed(portion)
            for index, rule, captures in self._matcher.match(lines):
                yield Signature(rule, lines[index], captures)

    def _chunks(self, file: LogFile) -> Iterator[bytes]:
        read = 0
        for chunk in file.chunks(self.problems):
            yield chunk
            read += len(chunk)
            if self._progress is not None:
                self._progress(self._done + min(read, file.size), self._total)
        self._done += file.size
