"""Find the logs at the paths that a user specifies: files, folders, globs, archives, and standard input."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import select
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from stallwatch_logs.archives import Member, TarFile, nested, resumed, zip_members
from stallwatch_logs.decompress import Kind, expanded, kind_of
from stallwatch_logs.file_names import archive_named, enters_folder, may_be_log, ranks_in_lines, takes_name
from stallwatch_logs.inputs import InputError, InputProblem, Limits, Meter, TimeIsUp, is_sparse
from stallwatch_logs.json_files import notebook_lines, trainer_state_lines
from stallwatch_logs.packed_records import MARKS, RecordCopies, folder_around
from stallwatch_logs.portions import HEAD, file_chunks, head_first
from stallwatch_logs.rank_files import holds_ranks, may_hold_ranks
from stallwatch_rules.lines.ranks import rank_of_path, ranks_of_tasks
from stallwatch_rules.text.controls import printable
from stallwatch_rules.text.encodings import looks_binary

__all__ = ["InputProblem", "Limits", "LogFile", "expand", "from_stream"]

STDIN = "<stdin>"
_NAMED = 3  # maximum number of unread archives whose names a message contains
_HEAD = 512  # number of bytes that show the kind of a file
# Number of bytes at the start of a file that show whether the file is text.
_JUDGED = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log to read: a file, a member of an archive, or a stream."""

    name: str  #: name to show to the user; for a member, "archive!member"
    rank: int | None  #: rank that printed the log, if the file's name contains it
    named_by_user: bool  #: True if the user specified the file itself. The file must then be text.
    size: int  #: number of bytes on disk, or 0 if unknown
    open_chunks: Callable[[], Iterator[bytes]] = field(repr=False)
    path: str = ""  #: path with which another process can open the log, if the log is a separate file
    plain: bool = False  #: True if the file is neither compressed nor converted
    limits: Limits = field(default_factory=Limits, repr=False)
    #: ranks of the host, if the lines contain local ranks (see ``LineReader``)
    local_ranks: tuple[int, ...] = ()
    folder: str = ""  #: for a member of an archive, the folder of its run's record (see ``expand``)

    def chunks(
        self, problems: list[InputProblem], binary: list[str] | None = None, *, size: int = 0
    ) -> Iterator[bytes]:
        """Yield the decompressed bytes of the log in portions. The first portion is the head of the file.

        If ``size`` is given, each later portion of a plain file ends at the end of a chunk of this size (see
        ``portions``). Errors are added to ``problems``. A file that is not text is an error only if the user
        specified it. Otherwise, its name is added to ``binary``. Raise `TimeIsUp` if the deadline has passed.
        """
        first = True
        try:
            if self.size:  # a pipe has no size, and its first bytes have already been read
                self.limits.check_time()
            for portion in head_first(self._aligned(size) if size else self.open_chunks()):
                if first and looks_binary(portion[:_JUDGED]):
                    if self.named_by_user:
                        problems.append(_binary(self.name))
                    elif binary is not None:
                        binary.append(self.name)
                    return
                first = False
                yield portion
                self.limits.check_time()
        except TimeIsUp:
            raise
        except InputError as error:
            problems.append(error.problem(self.name))
        except OSError as error:
            problems.append(_unreadable(self.name, error))

    def _aligned(self, size: int) -> Iterator[bytes]:
        """Read the whole file through one descriptor because log rotation can replace the file."""
        if not self.plain or is_sparse(self.path):
            yield from self.open_chunks()
            return
        with Path(self.path).open("rb", buffering=0) as raw:
            head = os.pread(raw.fileno(), HEAD, 0)
            yield head
            yield from file_chunks(raw.fileno(), len(head), None, size)


def expand(
    paths: Sequence[str | os.PathLike[str]],
    *,
    limits: Limits | None = None,
    rank_files: list[LogFile] | None = None,
    run_folders: list[str] | None = None,
    records: Callable[[], str] | None = None,
    silent: set[int] | None = None,
) -> tuple[list[LogFile], list[InputProblem]]:
    """Find the logs at the paths. Return two values: the logs in natural order and the problems.

    If `rank_files` is given, files with the states of ranks are added to it rather than to the logs. If
    `run_folders` is given, folders with the record of a run are added to it. Records in archives are copied,
    under safe names, to a folder that `records` creates. If `silent` is given, the ranks in the names of
    empty logs are added to it.
    """
    found = _Expansion(limits or Limits(), rank_files, run_folders, records)
    for path in paths:
        found.add(os.fspath(path))
    nothing = not found.files and not rank_files
    if nothing and not found.problems:
        found.named_empty += found.empty
    # The log of a job can be empty at first. An empty log does not impair the results from the other logs.
    found.problems += [_empty(name, harmless=not nothing) for name in found.named_empty]
    tasks = ranks_of_tasks(file.name for file in found.files)
    tasks |= ranks_in_lines(
        {
            file.name: file.path
            for file in found.files
            if file.plain and file.rank is None and file.name not in tasks
        }
    )
    if silent is not None:
        empty = (*found.empty, *found.empty_members)
        silent |= {rank for name in empty if (rank := rank_of_path(name)) is not None}
    found.forget()
    files = [replace(file, rank=tasks[file.name]) if file.name in tasks else file for file in found.files]
    return files, found.problems


def from_stream(
    name: str, stream: BinaryIO, *, limits: Limits | None = None
) -> tuple[list[LogFile], list[InputProblem]]:
    """Return the logs in an open stream that can be read more than once, such as an uploaded file."""
    found = _Expansion(limits or Limits())
    size = stream.seek(0, io.SEEK_END)
    if not size:
        return [], [_empty(name)]

    def reopen() -> BinaryIO:
        stream.seek(0)
        return cast(BinaryIO, _Unclosed(stream))

    found.take(name, reopen, size, named_by_user=True)
    return found.files, found.problems


class _Expansion:
    def __init__(
        self,
        limits: Limits,
        rank_files: list[LogFile] | None = None,
        run_folders: list[str] | None = None,
        records: Callable[[], str] | None = None,
    ) -> None:
        self.limits = limits
        self.rank_files = rank_files
        self.run_folders = run_folders
        self._records = RecordCopies(records) if records is not None and run_folders is not None else None
        self.files: list[LogFile] = []
        self.problems: list[InputProblem] = []
        self.empty: list[str] = []
        self.empty_members: list[str] = []  #: empty logs in archives
        self.named_empty: list[str] = []  #: empty files that the user named
        # Files that have been found, because a file with two paths must be read only once.
        self._known: set[tuple[int, int]] = set()

    def add(self, path: str, named: bool = True) -> None:
        """Add the log files at a path. ``named`` is False if a pattern found the path."""
        if path == "-":
            self._once(STDIN, sys.stdin.buffer)
            return
        if not path:
            self._report("''", "the path is empty", "specify the path of a file or folder")
            return
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116
        except (OSError, ValueError) as error:
            matched = sorted(glob.glob(path, recursive=True), key=natural) if glob.has_magic(path) else []  # noqa: PTH207
            for match in matched:
                self.add(match, named=False)
            if not matched:
                self.problems.append(_missing(path, error))
            return
        if stat.S_ISDIR(mode):
            self._folder(path)
        elif stat.S_ISREG(mode):
            self._file(path, named_by_user=True, may_be_empty=not named)
        elif named and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            try:
                self._once(path, self._opened_pipe(path))
            except OSError as error:
                self.problems.append(_unreadable(path, error))
        elif not named:
            self.problems.append(_special(path, mode))
        else:
            self._report(path, "this is neither a file nor a folder", "specify the path of a file or folder")

    def _report(self, name: str, message: str, remedy: str) -> None:
        self.problems.append(InputProblem(name, None, message, remedy))

    def forget(self) -> None:
        """Discard the list of files that were added.

        Otherwise, the list would occupy memory as long as log files refer to this object.
        """
        self._known.clear()

    def _folder(self, path: str) -> None:
        before = self._count()
        found: list[str] = []
        folders = [path]
        while folders:  # a loop, because `os.walk` is recursive in Python 3.11 and earlier
            try:
                self.limits.check_time()
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        if not _is_folder(entry):
                            found.append(entry.path)
                        elif enters_folder(entry.name) and not entry.is_symlink():
                            folders.append(entry.path)
            except OSError as error:
                self.problems.append(_unreadable(error.filename or path, error))
            except TimeIsUp as error:
                self.problems.append(error.problem(path))
                break
        if self.run_folders is not None:
            records = {name.rpartition(os.sep)[0] for name in found if name.rpartition(os.sep)[2] in MARKS}
            self.run_folders += sorted(records - {*self.run_folders}, key=natural)
        if self.rank_files is not None:
            for name in sorted(filter(may_hold_ranks, found), key=natural):
                self._rank_file(name)
        for name in sorted(logs_among(found), key=natural):
            self._file(name, named_by_user=False)
        if before == self._count():
            self.problems.append(_no_logs(path, "folder", [name for name in found if archive_named(name)]))

    def _count(self) -> tuple[int, ...]:
        return len(self.files), len(self.problems), len(self.rank_files or ())

    def _rank_file(self, path: str) -> None:
        """If a file contains the states of ranks, add the file to the rank files."""
        with contextlib.suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            known = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and status.st_size and known not in self._known:
                with _opened(path) as raw:
                    head = raw.read(_HEAD)
                chunks = partial(self._read, partial(_opened, path), "plain")
                if self._takes_ranks(path, head, status.st_size, False, chunks):
                    self._known.add(known)

    def _takes_ranks(
        self, name: str, head: bytes, size: int, named_by_user: bool, chunks: Callable[[], Iterator[bytes]]
    ) -> bool:
        if self.rank_files is None or not holds_ranks(name, head, named_by_user=named_by_user):
            return False
        shown = printable(name)
        rank = rank_of_path(name)
        self.rank_files.append(LogFile(shown, rank, named_by_user, size, chunks, limits=self.limits))
        return True

    def _file(self, path: str, named_by_user: bool, may_be_empty: bool = True) -> None:
        try:
            status = os.stat(path)  # noqa: PTH116
            if not stat.S_ISREG(status.st_mode):
                self.problems.append(_special(path, status.st_mode))
                return
            if (status.st_dev, status.st_ino) in self._known:
                return
            self._known.add((status.st_dev, status.st_ino))
            if not status.st_size:
                (self.empty if may_be_empty else self.named_empty).append(path)
                return
            self.take(path, partial(_opened, path), status.st_size, named_by_user, path)
        except OSError as error:
            self.problems.append(_unreadable(path, error))

    def take(
        self, name: str, reopen: Callable[[], BinaryIO], size: int, named_by_user: bool, path: str = ""
    ) -> None:
        """Add a file that can be reopened. Its content shows whether it is a log or an archive."""
        with reopen() as raw:
            head = raw.read(_HEAD)
        kind = kind_of(head)
        chunks = partial(self._read, reopen, kind)
        if kind == "plain" and self._takes_ranks(name, head, size, named_by_user, chunks):
            return
        if kind == "zip":
            self._zip(name, reopen, size)
        elif kind == "tar" or (kind != "plain" and self._holds_tar(reopen, kind)):
            members, error = TarFile(reopen, kind, self.limits).members()
            if error:
                self.problems.append(error.problem(name))
            if members or not error:
                self._members(name, members)
        else:
            archive = archive_named(name) if named_by_user else None
            if archive is not None:
                message = f"the file is not a {archive} archive and was read as text"
                self._report(name, message, "create or copy the archive again")
            self._log(name, size, named_by_user, chunks, path, kind == "plain")

    def _read(self, reopen: Callable[[], BinaryIO], kind: Kind) -> Iterator[bytes]:
        with reopen() as raw:
            yield from expanded(raw, kind, Meter(self.limits))

    def _holds_tar(self, reopen: Callable[[], BinaryIO], kind: Kind) -> bool:
        try:
            with reopen() as raw:
                return kind_of(next(expanded(raw, kind, Meter(self.limits)), b"")) == "tar"
        except InputError:
            return False  # the error is reported later, when the file is read

    def _zip(self, name: str, reopen: Callable[[], BinaryIO], size: int) -> None:
        try:
            members = zip_members(reopen, size, self.limits)
        except InputError as error:
            self.problems.append(error.problem(name))
            return
        self._members(name, sorted(members, key=lambda member: natural(member.name)))

    def _members(self, name: str, members: list[Member]) -> None:
        if len(members) > self.limits.members:
            message = f"the archive contains more than {self.limits.members:,} files; the rest was not read"
            self._report(name, message, "unpack the archive and specify the path of the folder")
        members = members[: self.limits.members]
        self.empty_members += logs_among([member.name for member in members if not member.size])
        by_name = {member.name: member for member in members if member.size}
        inside = [
            name for name in by_name if all(enters_folder(part) for part in re.split(r"[/\\]", name)[:-1])
        ]
        copies = self._records.folders_of(inside) if self._records is not None else {}
        if self.run_folders is not None:
            self.run_folders += map(str, copies.values())
        dumps = set[str]()
        for member in inside:  # in the order of the archive, because a tar archive is read in a single pass
            if self._records is not None and self._records.takes(member, by_name[member].chunks, copies):
                continue
            if may_hold_ranks(member) and self._takes_member(f"{name}!{member}", by_name[member]):
                dumps.add(member)
        taken = logs_among([member for member in inside if member not in dumps])
        for member in taken:
            folder = folder_around(member, copies)
            within = str(copies.get(folder, f"{name}!{folder}")) if copies else ""
            if (kind := archive_named(member)) is not None:
                self.problems.append(nested(kind).problem(f"{name}!{member}"))
            else:
                found = by_name[member]
                self._log(f"{name}!{member}", found.size, False, found.chunks, folder=within)
        if not taken and not dumps:
            archives = [member for member in inside if archive_named(member)]
            self.problems.append(_no_logs(name, "archive", archives))

    def _takes_member(self, name: str, member: Member) -> bool:
        """If a member of an archive contains the states of ranks, add the member to the rank files."""
        if self.rank_files is None:
            return False
        try:
            head = next(member.chunks(), b"")[:_HEAD]
        except (InputError, OSError):
            return False  # the error is reported later, when the member is read as a log
        return self._takes_ranks(name, head, member.size, False, member.chunks)

    def _opened_pipe(self, path: str) -> BinaryIO:
        """Open a pipe. If there is a deadline, return even if no process has opened the pipe for writing."""
        wait = 0 if self.limits.until is None else os.O_NONBLOCK
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait))

    def _once(self, name: str, opened: BinaryIO) -> None:
        """Add a pipe.

        A pipe can be read only once, so the bytes that show its kind become part of the log.
        """
        stream: BinaryIO | _Pipe = opened
        if self.limits.until is not None:
            with contextlib.suppress(OSError):  # the stream is not a pipe of the operating system
                stream = _Pipe(opened, opened.fileno(), self.limits)
        head = stream.head(65536) if isinstance(stream, _Pipe) else stream.read(65536)
        kind = kind_of(head)
        if not head:
            self._report(name, "no data was received", "pipe a log into the command, or specify a path")
        elif not head.strip(b"\0"):  # for example, /dev/zero returns null bytes endlessly
            self.problems.append(_binary(name))
        elif kind in ("zip", "tar"):
            self._report(name, f"a {kind} archive cannot be read from a pipe", "specify the archive's path")
        else:
            rest = resumed(head, stream)
            self._log(name, 0, True, lambda: expanded(rest, kind, Meter(self.limits)))

    def _log(
        self,
        name: str,
        size: int,
        named_by_user: bool,
        chunks: Callable[[], Iterator[bytes]],
        path: str = "",
        plain: bool = False,
        folder: str = "",
    ) -> None:
        lines_of = trainer_state_lines if name.endswith("trainer_state.json") else None
        if name.endswith(".ipynb"):
            lines_of = notebook_lines
        if lines_of is not None:
            whole, taken, plain = chunks, lines_of, False
            chunks = lambda: taken(whole())  # noqa: E731
        shown = printable(name)
        shown = path if shown == path else shown  # store only one string in memory
        self.files.append(
            LogFile(
                shown,
                rank_of_path(name),
                named_by_user,
                size,
                chunks,
                path,
                plain and bool(path),
                self.limits,
                folder=folder,
            )
        )


class _Pipe:
    """A pipe whose writer might write nothing for a long time. A read waits only until the deadline."""

    def __init__(self, stream: BinaryIO, file: int, limits: Limits) -> None:
        self._stream = stream  # keeps a reference, because deleting the stream object closes the file
        self._file = file
        self._limits = limits

    def read(self, size: int) -> bytes:
        if not select.select([self._file], [], [], self._limits.time_left)[0]:
            raise TimeIsUp
        return os.read(self._file, size)

    def head(self, size: int) -> bytes:
        """Return the first `size` bytes of the pipe.

        Return fewer bytes if the pipe ends or if the deadline passes first.
        """
        held = b""
        with contextlib.suppress(TimeIsUp):
            while len(held) < size and (portion := self.read(size - len(held))):
                held += portion
        return held


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")  # noqa: PTH123 - `Path.open` takes twice as long


class _Unclosed:
    """A context manager that does not close the stream, because the stream belongs to the caller."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.read, self.seek, self.tell = stream.read, stream.seek, stream.tell

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        pass

    def __enter__(self) -> _Unclosed:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def logs_among(paths: Sequence[str]) -> list[str]:
    """Return the files with typical log names. If there are none, return all files that can be logs."""
    for accepts in (takes_name, may_be_log):
        found = [path for path in paths if accepts(re.split(r"[/\\]", path)[-1])]
        if found:
            return found
    return []


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers by their values, so that rank9 comes before rank10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # the entry is, for example, a link to itself
        return False


def _no_logs(name: str, kind: str, archives: Sequence[str]) -> InputProblem:
    """Return the problem to report if a folder or an archive does not contain logs.

    ``archives`` contains the names of the archives that the folder or archive contains instead of logs.
    """
    if not archives:
        return InputProblem(
            name, None, f"the {kind} contains no log files", "specify the paths of the log files"
        )
    shown = ", ".join(archives[:_NAMED]) + (", …" if len(archives) > _NAMED else "")
    remedy = "specify the paths of the archives"
    if kind == "archive":
        remedy = "unpack it and specify the path of the folder"
    message = f"the {kind} contains no log files, only archives that were not read: {shown}"
    return InputProblem(name, None, message, remedy)


def _special(path: str, mode: int) -> InputProblem:
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    message = f"this is {kind}, not a file, and was not read"
    return InputProblem(path, None, message, "specify the paths of the log files")


def _missing(path: str, error: OSError | ValueError) -> InputProblem:
    if isinstance(error, PermissionError):
        return _unreadable(path, error)
    if glob.has_magic(path):
        return InputProblem(path, None, "no file matches", "check the pattern")
    return InputProblem(path, None, "no such file or folder", "check the path")


def _unreadable(path: str, error: OSError) -> InputProblem:
    remedy = "check the permissions" if isinstance(error, PermissionError) else "check the disk and the path"
    return InputProblem(path, None, f"cannot be read ({error.strerror or error})", remedy)


def _empty(name: str, harmless: bool = False) -> InputProblem:
    remedy = "the other files were read" if harmless else "specify a file that contains output"
    return InputProblem(name, None, "the file is empty", remedy, harmless)


def _binary(name: str) -> InputProblem:
    return InputProblem(name, None, "this is a binary file, not a log", "specify the text output of the run")


OnProgress = Callable[[int, int], None]
"""Called with two numbers of bytes on disk: the bytes that have been read, and all bytes."""


def on_bytes_read(progress: OnProgress | None, files: Sequence[LogFile]) -> Callable[[int], None]:
    """Return a function that passes the number of bytes read and the total to `progress`."""
    total = sum(file.size for file in files)
    return lambda read: None if progress is None else progress(read, total)


class ProgressReader:
    """A reader of several files in sequence. It passes the number of bytes read from disk to `progress`."""

    def __init__(self, files: Sequence[LogFile], progress: OnProgress | None) -> None:
        self._report = on_bytes_read(progress, files)
        self._done = 0

    def chunks(self, file: LogFile, problems: list[InputProblem], size: int = 0) -> Iterator[bytes]:
        """Yield the chunks of a file. Add the errors of this file to `problems`."""
        read = 0
        for chunk in file.chunks(problems, size=size):
            yield chunk
            read += len(chunk)
            self._report(self._done + min(read, file.size))
        self._done += file.size
