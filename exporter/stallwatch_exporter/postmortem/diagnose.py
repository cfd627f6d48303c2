"""Diagnose a finished run from its logs."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from stallwatch_exporter.postmortem.recorded import (
    recorded,
    with_kept,
    with_lost_hosts,
    with_recorded,
    without_copies,
)
from stallwatch_exporter.postmortem.run_folders import (
    folders_of_run,
    naming_followed_files,
    placed,
    placed_by_name,
    with_other_hosts,
)
from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.log_files import LogFile, OnProgress, expand, natural, on_bytes_read
from stallwatch_logs.parallel_reading import Parallel, read_all
from stallwatch_logs.rank_files import read_rank_files
from stallwatch_rules.lines.reader import MAX_LINE
from stallwatch_rules.locale import contains_message
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.curve import series_of
from stallwatch_rules.reading import MAX_STREAMS, RunReading
from stallwatch_rules.records import Diagnosis, Stats
from stallwatch_rules.stacks.concluding import ranks_elsewhere, with_stacks
from stallwatch_rules.stream import SOURCE
from stallwatch_rules.text.digest import counted
from stallwatch_rules.text.display import iso

if TYPE_CHECKING:
    from stallwatch_rules.failures.unexplained import Baseline

Paths = Sequence[str | os.PathLike[str]]
_ENDS_OPEN = ("diagnosis.just-ends", "diagnosis.just-ends-somewhere", "diagnosis.ends-in-evaluation")
OUT_OF_TIME = ("diagnosis.out-of-time", "diagnosis.out-of-time-size")
_NAMED = 3  # maximum number of skipped files that a note names


@dataclass(frozen=True)
class Options:
    """Options for diagnosing logs."""

    catalogue: Catalogue
    progress: OnProgress | None = None
    limits: Limits | None = None
    baseline: Baseline | None = None  #: Lines of a healthy run. All other lines count as new.

    #: Options for reading in several processes. They do not affect the diagnosis.
    parallel: Parallel | None = None
    #: Folder for copies of records from archives. The default is the system's temporary folder.
    scratch: str | None = None

    @contextmanager
    def expanded(self, paths: Paths) -> Iterator[UserFiles]:
        """Yield the files in these paths. At the end, delete the temporary copies of archived records."""
        rank_files, run_folders, silent = list[LogFile](), list[str](), set[int]()
        paths, notes = with_other_hosts(paths)
        with ExitStack() as stack:
            files, problems = expand(
                paths,
                limits=self.limits,
                rank_files=rank_files,
                run_folders=run_folders,
                records=lambda: stack.enter_context(
                    TemporaryDirectory(prefix="stallwatch-records-", dir=self.scratch)
                ),
                silent=silent,
            )
            problems = [naming_followed_files(problem) for problem in problems]
            yield UserFiles(files, problems, rank_files, run_folders, notes, silent)


class UserFiles(NamedTuple):
    """Files and run folders in the paths that the user passed for a diagnosis."""

    files: list[LogFile]
    problems: list[InputProblem]
    rank_files: list[LogFile]  #: stack snapshots and dumps, which are not logs but show where ranks were
    run_folders: list[str]  #: run folders that Stallwatch stored
    notes: list[Message]  #: notes about run folders that were added
    silent: Collection[int]  #: ranks in the names of empty logs


class RunResult(NamedTuple):
    """The diagnosis of one run and the last timestamp in the run's log."""

    diagnosis: Diagnosis
    last_time: str | None  #: last time in the log, in ISO 8601 format


def diagnose_paths(paths: Paths, options: Options) -> tuple[Diagnosis, list[InputProblem]]:
    """Read files, folders, globs, archives, and standard input (``-``), and diagnose their run.

    Inputs that cannot be read are listed as problems. All other inputs are diagnosed.
    """
    started = time.monotonic()
    with options.expanded(paths) as (files, problems, rank_files, run_folders, notes, silent):
        folders = folders_of_run(files, run_folders)
        result = diagnose_run(
            files, problems, folders, options, started=started, rank_files=rank_files, silent=silent
        )
    result.diagnosis.notes = [*notes, *result.diagnosis.notes]
    return result.diagnosis, problems


def diagnose_each(paths: Paths, options: Options) -> tuple[list[tuple[str, Diagnosis]], list[InputProblem]]:
    """Diagnose each file, in order, as the log of a separate run. Return the filenames and the diagnoses."""
    files, problems = expand(paths, limits=options.limits)
    found = []
    results = diagnose_in_turn([([file], ()) for file in files], replace(options, parallel=None))
    for file, (result, problems_of_file) in zip(files, results, strict=True):
        found.append((file.name, result.diagnosis))
        problems += problems_of_file
    return found, problems


def diagnose_in_turn(
    runs: Sequence[tuple[Sequence[LogFile], Sequence[Path]]], options: Options
) -> Iterator[tuple[RunResult, list[InputProblem]]]:
    """Diagnose several runs from their files and folders. Yield the result and the problems of each run."""
    matcher = Matcher(options.catalogue)
    sizes = [sum(file.size for file in files) for files, _ in runs]
    for number, (files, folders) in enumerate(runs):

        def within(read: int, _of: int, before: int = sum(sizes[:number])) -> None:
            if options.progress is not None:
                options.progress(before + read, sum(sizes))

        problems: list[InputProblem] = []
        own = replace(options, progress=within)
        yield diagnose_run(files, problems, folders, own, matcher=matcher), problems


def diagnose_run(
    files: Sequence[LogFile],
    problems: list[InputProblem],
    folders: Sequence[Path],
    options: Options,
    *,
    matcher: Matcher | None = None,
    started: float | None = None,
    rank_files: Sequence[LogFile] = (),
    silent: Collection[int] = (),
) -> RunResult:
    """Diagnose files as the logs of one run.

    `folders` are the run folders of the hosts. Their records add facts to the diagnosis. `rank_files` show
    where the ranks were. They are used only if the agent did not record the ranks' stacks. `silent` contains
    the ranks with empty logs. Inputs that cannot be read are added to `problems`, and the diagnosis contains
    all problems.
    """
    started = time.monotonic() if started is None else started
    alone = sum(file.size > 0 or not file.path for file in files) == 1
    reading = RunReading(options.catalogue, matcher, starts=alone and not folders)
    reading.baseline = options.baseline
    files, hosts, ranks_on = placed(files, folders)
    numbered = None
    if not hosts:
        (files, hosts, ranks_by_name), numbered = placed_by_name(files)
        ranks_on = ranks_on or ranks_by_name
    reading.silent = silent if numbered is None else ()
    reading.hosts, reading.ranks_on = hosts, ranks_on
    stats, notes = _read(files, problems, reading, options)
    known = recorded(folders, reading.clocks_ahead() if len(folders) > 1 else {})
    for rank, versions in known.versions.items():
        reading.environment(versions, SOURCE, rank)
    states = read_rank_files(rank_files, problems, reading.ranks_on)
    stats.files += states.files
    stacks = known.stacks or states.stacks
    hangs = stacks is not None and not files and bool(stacks.odd or stacks.candidates or stacks.why)
    stated = reading.stated_end if not folders else None  # a record is more complete than a log
    diagnosis = reading.diagnose(
        stated.ending if stated is not None else known.ending,
        threshold=known.threshold,
        stalled=known.stall is not None or hangs or (stated is not None and stated.stalled),
        waited=stated.ending.quiet if stated is not None else known.waited,
        ended_at=known.ended_at,
        elsewhere=ranks_elsewhere(stacks),
        watched=known.watched,
    )
    stats.seconds = round(time.monotonic() - started, 3)
    diagnosis.stats = stats
    if numbered is not None and diagnosis.in_trouble:
        notes.append(numbered)
    diagnosis.notes = [*diagnosis.notes, *notes, *map(str, problems)]
    if stats.unread_files:  # if a log was not read completely, its end is unknown
        notes_left = [note for note in diagnosis.notes if not contains_message(note, *_ENDS_OPEN)]
        diagnosis.notes = [time_limit_note(stats.unread_files, stats.unread_bytes), *notes_left]
    diagnosis = with_recorded(diagnosis, known)
    diagnosis = with_lost_hosts(diagnosis, known, reading.catalogue)
    diagnosis = with_kept(diagnosis, known)
    diagnosis = without_copies(diagnosis, problems, folders)
    if stacks is not None and (known.stacks is not None or diagnosis.in_trouble):
        diagnosis = with_stacks(diagnosis, stacks, reading.catalogue)
    diagnosis.series = series_of(reading.streams, diagnosis.blamed)
    return RunResult(diagnosis, _last_time(reading))


def time_limit_note(files: int, unread: int) -> Message:
    """Return a note that, at the time limit, `unread` bytes in `files` files had not been read."""
    if not unread:
        return message("diagnosis.out-of-time", count=files)
    return message("diagnosis.out-of-time-size", count=files, mib=unread / 1024**2)


def _read(
    files: Sequence[LogFile], problems: list[InputProblem], reading: RunReading, options: Options
) -> tuple[Stats, list[Text]]:
    """Read the files. Return statistics, and notes about content that was not read."""
    stats = Stats()
    notes: list[Text] = []
    binary: list[str] = []
    alike = unsearched = 0
    on_bytes = on_bytes_read(options.progress, files)
    for file, read in read_all(
        files, reading, on_bytes=on_bytes, parallel=options.parallel, limits=options.limits
    ):
        problems += read.problems
        binary += read.binary
        alike += read.alike
        if read.bytes:
            stats.files += 1
            stats.bytes += read.bytes
            stats.lines += read.lines
        if read.out_of_time:
            # For a compressed file, the number of bytes on disk that were read is unknown.
            unsearched += not read.bytes
            left = max(0, file.size - read.bytes) if file.plain or not read.bytes else 0
            if left or not file.plain:
                stats.unread_files += 1
                stats.unread_bytes += left
        if read.cut:
            notes.append(
                f"{file.name}: read only the beginning and the end of {counted(read.cut, 'line')} "
                f"longer than {MAX_LINE // 1024} KiB"
            )
    if reading.unread:
        problems.append(_too_many(len(reading.unread), min(reading.unread, key=natural)))
    if alike:
        notes.append(message("diagnosis.files-alike", files=len(files), read=len(files) - alike - unsearched))
    if binary:
        notes.append(_passed_over(binary))
    return stats, notes


def _last_time(reading: RunReading) -> str | None:
    streams = reading.streams.values()
    times = [(each.last_time, each.last_zoned) for each in streams if each.last_time is not None]
    last, zoned = max(times, default=(None, False))
    return iso(last, zoned=zoned)


def _passed_over(binary: Sequence[str]) -> str:
    shown = ", ".join(binary[:_NAMED]) + (", …" if len(binary) > _NAMED else "")
    files = "1 binary file was" if len(binary) == 1 else f"{len(binary)} binary files were"
    return f"{files} not read: {shown}"


def _too_many(count: int, first: str) -> InputProblem:
    """Return the problem to report if a run has too many files for one diagnosis."""
    others = f" and {counted(count - 1, 'other file')}" if count > 1 else ""
    return InputProblem(
        first,
        None,
        f"one diagnosis reads at most {MAX_STREAMS:,} files and ranks, so it skipped this file{others}",
        "diagnose the folders one by one, or use --each to diagnose each file separately",
    )
