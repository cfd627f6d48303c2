"""Copy the records of watched runs from archives to a folder.

The copies are necessary because records can be read only as files in a folder.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from stallwatch_logs.inputs import InputError

MARKS = ("agent.json", "record.json")  #: names of the files that mark a folder as a run folder
_FILES = (*MARKS, "diagnosis.json", "events.jsonl", "incidents.jsonl", "run-incidents.jsonl")
_MOST_BYTES = 256 << 20  # maximum total size of all copies, in bytes
_LONGEST = 100  # maximum number of characters in the name of a folder


class RecordCopies:
    """Copies of the records in archives. Their total size is limited, and their names are safe.

    The folder for the copies is created together with the first copy.
    """

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make
        self._home = ""
        self._folders = self._bytes = 0

    def folders_of(self, members: Sequence[str]) -> dict[str, Path]:
        """Create a new folder for each run folder in an archive.

        Return a dictionary that maps the names of run folders in the archive to the new folders. The name of
        a new folder is the last part of the name in the archive, which is the name of the run.
        """
        made: dict[str, Path] = {}
        marked = dict.fromkeys(_split(member)[0] for member in members if _split(member)[1] in MARKS)
        with contextlib.suppress(OSError):  # if the disk is full, the logs can still be read
            for folder in sorted(marked):
                self._home = self._home or self._make()
                name = re.sub(r"[^\w.+-]", "_", _split(folder)[1])[:_LONGEST].strip(".")
                copy = Path(self._home) / str(self._folders) / (name or "run")
                copy.mkdir(parents=True)
                made[folder] = copy
                self._folders += 1
        return made

    def takes(self, member: str, chunks: Callable[[], Iterator[bytes]], copies: Mapping[str, Path]) -> bool:
        """Copy a member of an archive if it belongs to the record of a run.

        Return whether the member belongs to a record.
        """
        folder, name = _split(member)
        if folder not in copies or name not in _FILES:
            return False
        # If the member cannot be read completely, the part before the error is used.
        with contextlib.suppress(InputError, OSError), (copies[folder] / name).open("wb") as out:
            for chunk in chunks():
                self._bytes += len(chunk)
                if self._bytes > _MOST_BYTES:
                    break
                out.write(chunk)
        return True


def folder_around(member: str, folders: Container[str]) -> str:
    """Return the run folder of a member: the folder of the member, or the folder that contains ``ranks``."""
    folder, _ = _split(member)
    parent, name = _split(folder)
    return parent if folder not in folders and name == "ranks" else folder


def _split(member: str) -> tuple[str, str]:
    folder, _, name = member.replace("\\", "/").rpartition("/")
    return folder, name
