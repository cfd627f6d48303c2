"""If a run has many small files, search them and select the files to read line by line.

``scan.similar_sources`` makes the selection.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import NamedTuple

from stallwatch_logs.file_reading import Engines
from stallwatch_logs.inputs import LATE, InputProblem, Limits, TimeIsUp
from stallwatch_logs.log_files import LogFile, expand
from stallwatch_logs.workers import Helpers, Pages, prepared
from stallwatch_rules.scan.similar_sources import (
    MANY,
    SourceOutline,
    choose,
    failure_targets,
    outline_sources,
)
from stallwatch_rules.scan.sources import UTF16_MARKS
from stallwatch_rules.text.encodings import looks_binary

SMALL = 64 * 1024  #: maximum number of decompressed bytes in a small file
_TOGETHER = 1024 * 1024  # number of bytes that are searched at the same time
_TOGETHER_FILES = 512

Sizes = tuple[int, int]  #: number of decompressed bytes, number of lines


@dataclass(frozen=True)
class Survey:
    """The result of searching small files: the files that do not have to be read line by line."""

    #: size of each file that is not read line by line, or ``None`` if the file was not searched in time
    unread: dict[int, Sizes | None]
    alike: dict[str, list[int]]  #: ranks with the same text as a file that is read, by the file's name


NO_SURVEY = Survey({}, {})


class Search(NamedTuple):
    """A job for another process: the paths of small files to search."""

    #: path of each file, and True if the file is neither compressed nor converted
    files: tuple[tuple[str, bool], ...]
    limits: Limits
    pages: Pages


Found = list[tuple[SourceOutline | None, int]]  # outline and size of each file that was searched in time


def survey(
    files: Sequence[LogFile],
    engines: Engines,
    limits: Limits | None,
    on_bytes: Callable[[int], None],
    helpers: Helpers | None,
) -> Survey:
    """Search the small files of a run in the current process and its helpers, and select files to read.

    Return `NO_SURVEY` if the run has only a few small files. The search takes at most half of the remaining
    time because the selected files must be read after the search.
    """
    if sum(0 < file.size <= SMALL for file in files) <= MANY or engines.scan() is None:
        return NO_SURVEY
    limits = (limits or Limits()).for_part()
    found: list[tuple[SourceOutline | None, int]] = [(None, 0)] * len(files)
    late: set[int] = set()  # indexes of files that were not searched in time
    waiting, running = deque(_batches(files)), dict[Future[Found], list[int]]()
    kinds: dict[bytes, bytes] = {}  # Digests that were found. Equal digests share one object.
    done = 0  # number of bytes that have been searched

    def take(numbers: list[int], searched: Found) -> None:
        late.update(numbers[len(searched) :])
        for number, (outline, size) in zip(numbers, searched, strict=False):
            if outline is not None:
                kind, texts = (kinds.setdefault(digest, digest) for digest in outline[:2])
                found[number] = outline._replace(kind=kind, texts=texts), size
        nonlocal done
        done += sum(files[number].size for number in numbers)
        on_bytes(done)

    def here(numbers: list[int]) -> None:
        take(numbers, outline_files((files[number] for number in numbers), engines, limits))

    while waiting or running:
        while helpers is not None and waiting and len(running) < helpers.window:
            numbers = waiting[0]
            if not all(files[number].path for number in numbers):
                break  # members of an archive must be read in their order
            paths = tuple((files[number].path, files[number].plain) for number in numbers)
            try:
                future = helpers.executor.submit(search_away, Search(paths, limits, helpers.pages))
            except (OSError, RuntimeError):  # the executor failed, or the system cannot start a process
                helpers = None
                break
            running[future] = waiting.popleft()
        if waiting:
            here(waiting.popleft() if not all(files[number].path for number in waiting[0]) else waiting.pop())
        elif running:
            left = limits.time_left
            if not wait(running, None if left is None else left + LATE, FIRST_COMPLETED).done:
                late.update(number for numbers in running.values() for number in numbers)
                break
        for future in [future for future in running if future.done()]:
            numbers = running.pop(future)
            failed = future.cancelled() or future.exception() is not None
            here(numbers) if failed else take(numbers, future.result())
    chosen = choose([outline for outline, _ in found])
    unread: dict[int, Sizes | None] = {
        number: (size, outline.lines)
        for number, (outline, size) in enumerate(found)
        if outline is not None and number not in chosen.numbers
    }
    unread.update(dict.fromkeys(late))
    alike = {
        files[read].name: [rank for other in others if (rank := files[other].rank) is not None]
        for read, others in chosen.alike.items()
    }
    return Survey(unread, alike)


def _batches(files: Sequence[LogFile]) -> Iterator[list[int]]:
    """Yield groups of small files that are searched together. Each group is a list of indexes.

    A group contains either members of archives or files on disk, but not both.
    """
    batch: list[int] = []
    held = 0
    for number, file in enumerate(files):
        if not 0 < file.size <= SMALL:
            continue
        if batch and (
            held + file.size > _TOGETHER
            or len(batch) >= _TOGETHER_FILES
            or bool(file.path) != bool(files[batch[-1]].path)
        ):
            yield batch
            batch, held = [], 0
        batch.append(number)
        held += file.size
    if batch:
        yield batch


def outline_files(files: Iterable[LogFile], engines: Engines, limits: Limits) -> Found:
    """Search files together until the deadline. Return the outline and the size of each searched file.

    If the outline of a file is ``None``, the file must be read line by line.
    """
    engine = engines.scan()
    assert engine is not None, "files are searched where blocks can be scanned"
    texts: list[bytes | None] = []
    with contextlib.suppress(TimeIsUp):
        for file in files:
            limits.check_time()
            texts.append(_text(file))
    failures = failure_targets(engine, engines.matcher.catalogue.failures)
    found = iter(outline_sources(engine, failures, [text for text in texts if text]))
    return [(next(found), len(text)) if text else (None, 0) for text in texts]


def _text(file: LogFile) -> bytes | None:
    """Return the text of a small file, or ``None`` if it is too large, is not text, or cannot be read."""
    text = b""
    try:
        if file.plain:
            with open(file.path, "rb", buffering=0) as raw:  # noqa: PTH123 - `Path.open` takes longer
                text = raw.read(SMALL + 1)
        else:
            problems: list[InputProblem] = []
            for portion in file.chunks(problems, []):
                text += portion
                if len(text) > SMALL:
                    break
            if problems:
                return None
    except OSError:
        return None
    if len(text) > SMALL or text[:2] in UTF16_MARKS or looks_binary(text):
        return None
    return text


def search_away(job: Search) -> Found:
    """Search files on behalf of another process. A worker runs this function as a job."""
    files = (_file(path, plain, job.limits) for path, plain in job.files)
    return outline_files(files, prepared(job.pages), job.limits)


def _file(path: str, plain: bool, limits: Limits) -> LogFile:
    found = [] if plain else expand([path], limits=limits)[0]
    return found[0] if found else LogFile(path, None, False, 0, lambda: iter(()), path, plain)
