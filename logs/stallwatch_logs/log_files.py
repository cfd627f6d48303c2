"""Find the log files behind the user's paths: files, folders, globs, archives, standard input."""

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

from stallwatch_logs.archives import TarFile, nested, zip_members
from stallwatch_logs.decompress import Kind, expanded, kind_of
from stallwatch_logs.file_names import archive_named, enters_folder, may_be_log, ranks_in_lines, takes_name
from stallwatch_logs.inputs import InputError, InputProblem, Limits, Meter, TimeIsUp, is_sparse
from stallwatch_logs.json_files import notebook_lines, trainer_state_lines
from stallwatch_logs.portions import HEAD, file_chunks, head_first
from stallwatch_logs.rank_files import holds_ranks, may_hold_ranks
from stallwatch_rules.lines.ranks import rank_of_path, ranks_of_tasks
from stallwatch_rules.text.controls import printable
from stallwatch_rules.text.encodings import looks_binary

__all__ = ["InputProblem", "Limits", "LogFile", "expand", "from_stream"]

STDIN = "<stdin>"
_NAMED = 3  # number of unread archives that a message names
_RECORDS = (f"{os.sep}agent.json", f"{os.sep}record.json")  # records of runs that Stallwatch watched
_HEAD = 512  # number of bytes that show the kind of a file
_JUDGED = 64 * 1024  # number of bytes of the head that show whether a file is text


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log to read: a file, a member of an archive, or a stream."""

    name: str  #: name for the user; a member is "archive!member"
    rank: int | None  #: rank that printed the log, if the name contains it
    named_by_user: bool  #: the user named it, so it is a problem if it is not text
    size: int  #: bytes on disk, 0 if unknown
    open_chunks: Callable[[], Iterator[bytes]] = field(repr=False)
    path: str = ""  #: path for another process, if the log is a separate file
    plain: bool = False  #: the file is neither compressed nor converted
    limits: Limits = field(default_factory=Limits, repr=False)
    local_ranks: tuple[int, ...] = ()  #: ranks of one host, if its lines count these; see ``LineReader``

    def chunks(
        self, problems: list[InputProblem], binary: list[str] | None = None, *, size: int = 0
    ) -> Iterator[bytes]:
        """Yield the decompressed bytes in portions, the first of which is the file's head (``portions``).

        With ``size``, the portions of a plain file end at its chunks of that size. Errors are added to
        ``problems``; a file that was found, not named by the user, and is not text is only listed in
        ``binary``. Raises `TimeIsUp` after the last portion for which there was time.
        """
        first = True
        try:
            if self.size:  # some bytes of a pipe are read already
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
        """Read through one descriptor: after a log rotation, its path would lead to another file."""
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
) -> tuple[list[LogFile], list[InputProblem]]:
    """Return the logs behind the paths, in natural order, and the problems of finding or reading them.

    Files with the states of ranks are not logs: they are added to `rank_files`, if given. Folders that
    contain the record of a run are added to `run_folders`, if given.
    """
    found = _Expansion(limits or Limits(), rank_files, run_folders)
    for path in paths:
        found.add(os.fspath(path))
    if not found.files and not found.problems and found.empty:
        found.problems.extend(_empty(name) for name in found.empty)
    tasks = ranks_of_tasks(file.name for file in found.files)
    tasks |= ranks_in_lines(
        {
            file.name: file.path
            for file in found.files
            if file.plain and file.rank is None and file.name not in tasks
        }
    )
    found.forget()
    ranked = (tasks.get(file.name, file.rank) for file in found.files)
    files = [
        file if rank == file.rank else replace(file, rank=rank)
        for file, rank in zip(found.files, ranked, strict=True)
    ]
    return files, found.problems


def from_stream(
    name: str, stream: BinaryIO, *, limits: Limits | None = None
) -> tuple[list[LogFile], list[InputProblem]]:
    """Return the logs in an open, seekable stream, such as an upload."""
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
    ) -> None:
        self.limits = limits
        self.rank_files = rank_files
        self.run_folders = run_folders
        self.files: list[LogFile] = []
        self.problems: list[InputProblem] = []
        self.empty: list[str] = []
        self._known: set[tuple[int, int]] = set()  # a file reached by two paths is read once

    def add(self, path: str, named: bool = True) -> None:
        """Add the files of a path; a path that is not `named` was found by a pattern."""
        if path == "-":
            self._once(STDIN, sys.stdin.buffer)
            return
        if not path:
            self.problems.append(InputProblem("''", None, "the path is empty", "name a file or a folder"))
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
            self.problems.append(
                InputProblem(path, None, "is neither a file nor a folder", "name a file or a folder")
            )

    def forget(self) -> None:
        """Clear the set of known files, because the files keep this object alive."""
        self._known.clear()

    def _folder(self, path: str) -> None:
        before = self._count()

        def failed(error: OSError) -> None:
            self.problems.append(_unreadable(error.filename or path, error))

        found: list[str] = []
        folders = [path]
        while folders:  # not by os.walk, which recurses before Python 3.12
            try:
                self.limits.check_time()
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        if not _is_folder(entry):
                            found.append(entry.path)
                        elif enters_folder(entry.name) and not entry.is_symlink():
                            folders.append(entry.path)
            except OSError as error:
                failed(error)
            except TimeIsUp as error:
                self.problems.append(error.problem(path))
                break
        if self.run_folders is not None:
            records = {name.rpartition(os.sep)[0] for name in found if name.endswith(_RECORDS)}
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
        """Add a file of a folder to the rank files if it contains the states of ranks."""
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
                if may_be_empty:
                    self.empty.append(path)
                else:
                    self.problems.append(_empty(path))
                return
            self.take(path, partial(_opened, path), status.st_size, named_by_user, path)
        except OSError as error:
            self.problems.append(_unreadable(path, error))

    def take(
        self, name: str, reopen: Callable[[], BinaryIO], size: int, named_by_user: bool, path: str = ""
    ) -> None:
        """Add a file that can be reopened; its content determines its kind."""
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
                self._members(name, [(m.name, m.size, m.chunks) for m in members])
        else:
            archive = archive_named(name) if named_by_user else None
            if archive is not None:
                self.problems.append(
                    InputProblem(
                        name, None, f"not a {archive} archive; read as text", "pack or copy it again"
                    )
                )
            self._log(name, size, named_by_user, chunks, path, kind == "plain")

    def _read(self, reopen: Callable[[], BinaryIO], kind: Kind) -> Iterator[bytes]:
        with reopen() as raw:
            yield from expanded(raw, kind, Meter(self.limits))

    def _holds_tar(self, reopen: Callable[[], BinaryIO], kind: Kind) -> bool:
        try:
            with reopen() as raw:
                return kind_of(next(expanded(raw, kind, Meter(self.limits)), b"")) == "tar"
        except InputError:
            return False  # reading it will report that error

    def _zip(self, name: str, reopen: Callable[[], BinaryIO], size: int) -> None:
        try:
            members = zip_members(reopen, size, self.limits)
        except InputError as error:
            self.problems.append(error.problem(name))
            return
        members.sort(key=lambda member: natural(member.name))
        self._members(name, [(m.name, m.size, m.chunks) for m in members])

    def _members(self, name: str, members: list[tuple[str, int, Callable[[], Iterator[bytes]]]]) -> None:
        if len(members) > self.limits.members:
            self.problems.append(
                InputProblem(
                    name,
                    None,
                    f"holds more than {self.limits.members:,} files; the others were not read",
                    "unpack it and give the logs' folder",
                )
            )
        by_name = {member: (size, chunks) for member, size, chunks in members[: self.limits.members] if size}
        inside = [
            name for name in by_name if all(enters_folder(part) for part in re.split(r"[/\\]", name)[:-1])
        ]
        ranked = [] if self.rank_files is None else list(filter(may_hold_ranks, inside))
        dumps = {member for member in ranked if self._takes_member(f"{name}!{member}", *by_name[member])}
        taken = logs_among([member for member in inside if member not in dumps])
        for member in taken:
            size, chunks = by_name[member]
            if (kind := archive_named(member)) is not None:
                self.problems.append(nested(kind).problem(f"{name}!{member}"))
            else:
                self._log(f"{name}!{member}", size, False, chunks)
        if not taken and not dumps:
            archives = [member for member in inside if archive_named(member)]
            self.problems.append(_no_logs(name, "archive", archives))

    def _takes_member(self, name: str, size: int, chunks: Callable[[], Iterator[bytes]]) -> bool:
        """Add a member of an archive to the rank files if it contains the states of ranks."""
        try:
            head = next(chunks(), b"")[:_HEAD]
        except (InputError, OSError):
            return False  # reading it as a log reports the error
        return self._takes_ranks(name, head, size, False, chunks)

    def _opened_pipe(self, path: str) -> BinaryIO:
        """Return an open pipe; with a deadline, opening does not wait for a writer."""
        wait = 0 if self.limits.until is None else os.O_NONBLOCK
        return open(path, "rb", opener=lambda name, flags: os.open(name, flags | wait))

    def _once(self, name: str, opened: BinaryIO) -> None:
        """Add a pipe: bytes read to inspect it cannot be read again."""
        stream: BinaryIO | _Pipe = opened
        if self.limits.until is not None:
            with contextlib.suppress(OSError):  # not a pipe of the operating system
                stream = _Pipe(opened, opened.fileno(), self.limits)
        head = stream.head(65536) if isinstance(stream, _Pipe) else stream.read(65536)
        kind = kind_of(head)
        if not head:
            self.problems.append(
                InputProblem(name, None, "nothing came in", "pipe a log into it, or name a file")
            )
        elif not head.strip(b"\0"):  # for example, /dev/zero returns NULs endlessly
            self.problems.append(_binary(name))
        elif kind in ("zip", "tar"):
            self.problems.append(
                InputProblem(name, None, f"a {kind} archive cannot be read from a pipe", "give its path")
            )
        else:
            rest = cast(BinaryIO, _Preceded(head, stream))
            self._log(name, 0, True, lambda: expanded(rest, kind, Meter(self.limits)))

    def _log(
        self,
        name: str,
        size: int,
        named_by_user: bool,
        chunks: Callable[[], Iterator[bytes]],
        path: str = "",
        plain: bool = False,
    ) -> None:
        lines_of = trainer_state_lines if name.endswith("trainer_state.json") else None
        if name.endswith(".ipynb"):
            lines_of = notebook_lines
        if lines_of is not None:
            whole, taken, plain = chunks, lines_of, False
            chunks = lambda: taken(whole())  # noqa: E731
        shown = printable(name)
        shown = path if shown == path else shown  # keeps only one string in memory
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
            )
        )


class _Pipe:
    """A pipe that may stay silent: waits for data no longer than time remains."""

    def __init__(self, stream: BinaryIO, file: int, limits: Limits) -> None:
        self._stream = stream  # kept, because its deletion would close the file
        self._file = file
        self._limits = limits

    def read(self, size: int) -> bytes:
        if not select.select([self._file], [], [], self._limits.time_left)[0]:
            raise TimeIsUp
        return os.read(self._file, size)

    def head(self, size: int) -> bytes:
        """Return up to `size` bytes that arrive while time remains."""
        held = b""
        with contextlib.suppress(TimeIsUp):
            while len(held) < size and (portion := self.read(size - len(held))):
                held += portion
        return held


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")  # noqa: PTH123 - a `Path` takes twice the time


class _Preceded:
    """A stream that first returns the bytes already read from it."""

    def __init__(self, head: bytes, stream: BinaryIO | _Pipe) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._stream.read(size)


class _Unclosed:
    """A caller's stream that is not closed on exit."""

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
    """Return the files with a log's name; if there are none, the files that may be logs."""
    for accepts in (takes_name, may_be_log):
        found = [path for path in paths if accepts(re.split(r"[/\\]", path)[-1])]
        if found:
            return found
    return []


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank10 after rank9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _no_logs(name: str, kind: str, archives: Sequence[str]) -> InputProblem:
    """Return the problem of a folder or an archive without logs; ``archives`` are the archives in it."""
    if not archives:
        return InputProblem(name, None, f"the {kind} holds no log files", "give the log files themselves")
    shown = ", ".join(archives[:_NAMED]) + (", …" if len(archives) > _NAMED else "")
    remedy = "unpack it and give the folder" if kind == "archive" else "give the archives themselves"
    return InputProblem(name, None, f"the {kind} holds no log files but archives, not read: {shown}", remedy)


def _special(path: str, mode: int) -> InputProblem:
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    return InputProblem(path, None, f"is {kind} and no file; not read", "name the log files themselves")


def _missing(path: str, error: OSError | ValueError) -> InputProblem:
    if isinstance(error, PermissionError):
        return _unreadable(path, error)
    if glob.has_magic(path):
        return InputProblem(path, None, "no file matches", "check the pattern")
    return InputProblem(path, None, "no such file or folder", "check the path")


def _unreadable(path: str, error: OSError) -> InputProblem:
    remedy = "check who may read it" if isinstance(error, PermissionError) else "check the disk and the path"
    return InputProblem(path, None, f"cannot be read ({error.strerror or error})", remedy)


def _empty(name: str) -> InputProblem:
    return InputProblem(name, None, "the file is empty", "give a file with some output in it")


def _binary(name: str) -> InputProblem:
    return InputProblem(name, None, "is a binary file, not a log", "give the text that the run printed")


OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far and the total, both on disk."""


def on_bytes_read(progress: OnProgress | None, files: Sequence[LogFile]) -> Callable[[int], None]:
    """Return a callback that reports the bytes on disk read so far, and the total, to `progress`."""
    total = sum(file.size for file in files)
    return lambda read: None if progress is None else progress(read, total)


class ProgressReader:
    """Read files one after another and report to `progress`; sizes of packed files are those on disk."""

    def __init__(self, files: Sequence[LogFile], progress: OnProgress | None) -> None:
        self._report = on_bytes_read(progress, files)
        self._done = 0

    def chunks(self, file: LogFile, problems: list[InputProblem], size: int = 0) -> Iterator[bytes]:
        """Yield the chunks of one of the files; add its errors to `problems`."""
        read = 0
        for chunk in file.chunks(problems, size=size):
            yield chunk
            read += len(chunk)
            self._report(self._done + min(read, file.size))
        self._done += file.size
