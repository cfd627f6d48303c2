"""Read a log file, either for a diagnosis or to find matches of rules."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stallwatch_logs.inputs import InputProblem, Limits, TimeIsUp
from stallwatch_logs.line_format import prefix_of
from stallwatch_logs.log_files import LogFile, OnProgress, ProgressReader, expand
from stallwatch_logs.portions import HEAD
from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.reading import PartialReading, RunReading
from stallwatch_rules.scan.matches import CHUNK, Match, MatchPatterns, MatchScan
from stallwatch_rules.scan.patterns import ScanEngine, scan_engine
from stallwatch_rules.scan.sources import UTF16_MARKS, SourceReading
from stallwatch_rules.scan.state import ScanSizes

Within = Callable[[int], None]  #: function that receives the number of bytes read from a file


class Stopped(Exception):
    """An error that stops the reading of a file whose result is no longer needed."""


@dataclass
class FileRead:
    """The result of reading a file."""

    #: reading of only this file, or ``None`` if it was merged into the reading of the run
    reading: PartialReading | None
    bytes: int = 0
    lines: int = 0
    cut: int = 0  #: number of lines that were truncated
    problems: list[InputProblem] = field(default_factory=list)
    binary: list[str] = field(default_factory=list)  #: name of the file if the file exists but is not text
    out_of_time: bool = False  #: True if the deadline passed before the file was read to its end
    alike: bool = False  #: True if the file was searched but not read, because another file has the same text


class Engines(NamedTuple):
    """The compiled patterns of a catalogue."""

    matcher: Matcher
    #: function that compiles the patterns for the sampled scan on its first call
    scan: Callable[[], ScanEngine | None]

    @classmethod
    def of(cls, matcher: Matcher) -> Engines:
        """Return the compiled patterns of the matcher's catalogue."""
        return cls(matcher, functools.partial(_engine_of, matcher))


_engine_of = functools.lru_cache(maxsize=1)(scan_engine)  # consecutive diagnoses use the same matcher


def read_file(
    file: LogFile, reading: RunReading, engines: Engines, within: Within, sizes: ScanSizes
) -> FileRead:
    """Read the lines of a file and add them to `reading`, the state of a run."""
    read = FileRead(None)
    chunks = in_time(file.chunks(read.problems, read.binary, size=sizes.chunk), read)
    head = next(chunks, b"")
    lead = prefix_of(head)
    lines = LineReader(file.name, file.rank, lead, local_ranks=file.local_ranks).look_ahead(head)
    whole = lead is not None and lead.quoted  # the sampled scan cannot read lines whose text is quoted
    source = SourceReading(reading, lines, engines.scan if not whole else lambda: None, sizes)
    for chunk in itertools.chain((head,) if head else (), chunks):
        source.feed(chunk)
        within(source.bytes)
    source.finish()
    read.bytes, read.lines, read.cut = source.bytes, source.lines, source.cut
    return read


def in_time(chunks: Iterator[bytes], read: FileRead) -> Iterator[bytes]:
    """Yield chunks until the deadline. If the deadline passes, set ``read.out_of_time``."""
    try:
        yield from chunks
    except TimeIsUp:
        read.out_of_time = True


def read_apart(file: LogFile, engines: Engines, within: Within, sizes: ScanSizes) -> FileRead:
    """Read a file into a separate `RunReading` so that an error affects only this file."""
    reading = RunReading(engines.matcher.catalogue, engines.matcher)
    try:
        read = read_file(file, reading, engines, within, sizes)
    except Stopped:
        raise
    except Exception as error:
        message = f"the file could not be read because of an internal error ({type(error).__name__}: {error})"
        problem = InputProblem(file.name, None, message, "the other files were read; report this bug")
        return FileRead(None, problems=[problem])
    return replace(read, reading=reading.parted())


class Matching:
    """A search for matches of rules in files. ``problems`` lists the files that cannot be read.

    Unlike a diagnosis, the search does not check the surrounding lines that a rule requires, and does not
    determine the impact of a match on the run.
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
        """Yield all matches, with secrets masked, in the order of the files and lines."""
        for file in self.files:
            yield from (match.masked() for match in self._matches_in(file))

    def _matches_in(self, file: LogFile) -> Iterator[Match]:
        portions = self._reader.chunks(file, self.problems, CHUNK)
        head = next(portions, b"")
        portions = itertools.chain([head], portions)
        short = len(head) < HEAD or head[:2] in UTF16_MARKS
        lead = prefix_of(head)
        if self._patterns is None or short or (lead is not None and lead.quoted):
            reader = LineReader(file.name, file.rank, lead)
            yield from self._line_by_line(reader, portions)
            return
        scan = MatchScan(self._patterns, file.name, file.rank, lead)
        for portion in portions:
            yield from scan.feed(portion)
        yield from scan.finish()

    def _line_by_line(self, reader: LineReader, portions: Iterator[bytes]) -> Iterator[Match]:
        """Yield the matches in a file that is short or cannot be scanned in blocks.

        In a short file, the result for one line can depend on other lines.
        """
        for portion in itertools.chain(portions, [None]):
            lines = reader.finish() if portion is None else reader.feed(portion)
            for index, rule, captures in self._matcher.match(lines):
                yield Match(rule, lines[index], captures)
