"""Every place in the user's logs where a rule fires, file by file."""

from __future__ import annotations

import codecs
import itertools
import os
from collections.abc import Iterator, Sequence
from io import FileIO

from stallwatch_logs.heads import HEAD
from stallwatch_logs.inputs import Limits
from stallwatch_logs.line_format import fold_of, lead_of
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.progress import OnProgress, ProgressReader
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.matching.signatures import Signature, SignatureRules, SignatureScan

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
        progress: OnProgress | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.files, self.problems = expand(paths, limits=limits)
        self._matcher = matcher
        self._rules = SignatureRules(matcher) if matcher.engine == "hyperscan" else None
        self._reader = ProgressReader(self.files, progress)

    def matches(self) -> Iterator[Signature]:
        """All of them: the files in their order, each file's lines in theirs."""
        for file in self.files:
            with file.opened() as (source, raw):
                yield from self._matches_in(source, raw)

    def _matches_in(self, file: LogFile, raw: FileIO | None) -> Iterator[Signature]:
        chunks = self._reader.chunks(file, self.problems)
        head = next(chunks, b"")
        portions = itertools.chain([head], chunks)
        short = len(head) < HEAD or head[:2] in _UTF16
        lead = None if short else lead_of(head)
        if self._rules is None or short or (lead is not None and lead.quoted):
            reader = LineReader(file.name, file.rank, *fold_of(head, self._matcher))
            yield from self._line_by_line(reader, portions)
            return
        scan = SignatureScan(self._rules, file.name, file.rank, lead)
        if raw is not None:
            yield from scan.feed(head)
            for read in self._reader.poured(file, raw, len(head), scan.room, self.problems):
                yield from scan.filled(read)
        else:
            for portion in portions:
                yield from scan.feed(portion)
        yield from scan.finish()

    def _line_by_line(self, reader: LineReader, portions: Iterator[bytes]) -> Iterator[Signature]:
        """Short files, in which the lines around a line may explain it, and whatever cannot be scanned."""
        for portion in itertools.chain(portions, [None]):
            lines = reader.finish() if portion is None else reader.feed(portion)
            for index, rule, captures in self._matcher.match(lines):
                yield Signature(rule, lines[index], captures)
