"""Every place in the user's logs where a rule fires, file by file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

from stallwatch_logs.inputs import Limits
from stallwatch_logs.line_format import fold_of, lead_of
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.portions import HEAD
from stallwatch_logs.progress import OnProgress, ProgressReader
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.scan.matches import CHUNK, Match, MatchPatterns, MatchScan
from stallwatch_rules.scan.sources import UTF16_MARKS


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
        self._patterns = MatchPatterns(matcher) if matcher.engine == "hyperscan" else None
        self._reader = ProgressReader(self.files, progress)

    def matches(self) -> Iterator[Match]:
        """All of them: the files in their order, each file's lines in theirs."""
        for file in self.files:
            yield from self._matches_in(file)

    def _matches_in(self, file: LogFile) -> Iterator[Match]:
        portions = self._reader.chunks(file, self.problems, CHUNK)
        head = next(portions, b"")
        portions = itertools.chain([head], portions)
        short = len(head) < HEAD or head[:2] in UTF16_MARKS
        lead = None if short else lead_of(head)
        if self._patterns is None or short or (lead is not None and lead.quoted):
            reader = LineReader(file.name, file.rank, *fold_of(head, self._matcher))
            yield from self._line_by_line(reader, portions)
            return
        scan = MatchScan(self._patterns, file.name, file.rank, lead)
        for portion in portions:
            yield from scan.feed(portion)
        yield from scan.finish()

    def _line_by_line(self, reader: LineReader, portions: Iterator[bytes]) -> Iterator[Match]:
        """Short files, in which the lines around a line may explain it, and whatever cannot be scanned."""
        for portion in itertools.chain(portions, [None]):
            lines = reader.finish() if portion is None else reader.feed(portion)
            for index, rule, captures in self._matcher.match(lines):
                yield Match(rule, lines[index], captures)
