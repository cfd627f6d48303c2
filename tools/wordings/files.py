"""List the files of a package that can contain strings.

The files are in folders, or in an archive that is not extracted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stallwatch_logs.archives import Member, TarFile, zip_members
from stallwatch_logs.decompress import kind_of
from stallwatch_logs.inputs import CHUNK, InputError, Limits
from wordings.search import COMPILED

BINARY = (".so", ".dylib", ".pyd")
SUFFIXES = (".py", *COMPILED, *BINARY)
MAX_FILE = 20 << 20  #: maximum number of bytes of source; larger files are generated and contain no messages
MAX_ARCHIVE = 512 << 20  #: maximum number of bytes of source read into memory from a source archive
LIMITS = Limits(members=100_000, expanded=16 << 30)  #: limits of an archive (torch's wheel has 12,000 files)


class SourceError(Exception):
    """Raised for a package whose source is not available. The message contains the reason and a fix."""


@dataclass(frozen=True)
class SourceFile:
    """A file of the package that is searched for strings."""

    name: str  #: path inside the package, with slashes
    #: Function that returns an iterator over the content. Each call starts from the beginning.
    chunks: Callable[[], Iterator[bytes]]
    place: str = ""  #: the complete path; a rule can name the end of this path

    @property
    def binary(self) -> bool:
        """True if the file is compiled."""
        return self.name.endswith(BINARY) or ".so." in self.base

    @property
    def base(self) -> str:
        """The file's name without its folders."""
        return self.name.rpartition("/")[2]

    def text(self) -> str:
        """Return the text of the file, or an empty string if the file is longer than ``MAX_FILE``."""
        content = b""
        for chunk in self.chunks():
            content += chunk
            if len(content) > MAX_FILE:
                return ""
        return content.decode("utf-8", "replace")


class Sources(NamedTuple):
    """All files of a package that can contain messages, and the package's version."""

    files: list[SourceFile]
    version: str  #: empty if unknown


def file_of(path: Path, name: str = "") -> SourceFile:
    """Return the source file at a path on disk."""
    return SourceFile(name or path.name, partial(_read, path), path.as_posix())


def in_folders(folders: Iterable[Path]) -> list[SourceFile]:
    """Return the files in these folders that can contain messages."""
    return [
        file_of(path, path.relative_to(folder).as_posix())
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if _wanted(path.name) and path.is_file()
    ]


def in_wheel(path: Path) -> list[SourceFile]:
    """Return the files in a wheel or in another zip archive. Their content is read on demand."""
    try:
        return [
            SourceFile(member.name, partial(_read_member, path.name, member))
            for member in _few(zip_members(lambda: path.open("rb"), path.stat().st_size, LIMITS))
            if _wanted(member.name)
        ]
    except InputError as error:
        raise SourceError(f"{path.name}: {error.message}") from error


def in_sdist(name: str, content: bytes) -> list[SourceFile]:
    """Return the files in a source archive.

    The contents of the files stay in memory, because a tar archive can be read only from start to end.
    """
    kind = kind_of(content[:512])
    found: list[SourceFile] = []
    left = MAX_ARCHIVE
    try:
        if kind == "zip":
            members = zip_members(lambda: io.BytesIO(content), len(content), LIMITS)
        else:
            members, broken = TarFile(lambda: io.BytesIO(content), kind, LIMITS).members()
            if broken is not None:
                raise broken
        for member in _few(members):
            if not _wanted(member.name) or member.size > MAX_FILE:
                continue
            left -= member.size
            if left < 0:
                raise SourceError(f"{name}: holds more than {MAX_ARCHIVE >> 20} MiB of source")
            held = b"".join(member.chunks())
            found.append(SourceFile(member.name, partial(iter, (held,))))
    except InputError as error:
        raise SourceError(f"{name}: {error.message}") from error
    return found


def _wanted(name: str) -> bool:
    return name.endswith(SUFFIXES) or ".so." in name.rpartition("/")[2]


def _few(members: list[Member]) -> list[Member]:
    if len(members) > LIMITS.members:
        raise InputError(f"holds more than {LIMITS.members:,} files", "unpack it and use --path DIR")
    return members


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, CHUNK), b"")


def _read_member(archive: str, member: Member) -> Iterator[bytes]:
    try:
        yield from member.chunks()
    except InputError as error:
        raise SourceError(f"{archive}: {member.name}: {error.message}") from error
