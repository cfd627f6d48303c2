"""Uploaded files on disk for as long as they are read, under names that lead nowhere else."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
_LONGEST = 120
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]")


def safe_name(name: str, number: int) -> str:
    """The last part of an upload's name, fit for a file of its own; its rank and endings stay readable."""
    last = _UNFIT.sub("_", re.split(r"[/\\]", name)[-1]).strip()
    while len(last.encode("utf-8", "replace")) > _LONGEST:
        last = last[1:]
    if last in ("", ".", "..") or last.startswith("-"):
        last = f"upload{last}" if last.startswith("-") else f"upload-{number}"
    return last.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def spooled(files: Sequence[tuple[str, BinaryIO]], home: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder of the user's alone with the files in it, and their paths within; removed at the end.

    Two files of one name lie in folders of their own.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=".upload-", dir=home))
    try:
        names: list[str] = []
        for number, (name, stream) in enumerate(files):
            path = Path(safe_name(name, number))
            if str(path) in names:
                path = Path(str(number)) / path
            (folder / path).parent.mkdir(exist_ok=True)
            with (folder / path).open("xb") as file:
                stream.seek(0)
                shutil.copyfileobj(stream, file, _BLOCK)
            names.append(str(path))
        yield folder, names
    finally:
        shutil.rmtree(folder, ignore_errors=True)
