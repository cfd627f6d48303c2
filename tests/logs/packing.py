"""Logs in files and archives for the tests of log reading."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from pathlib import Path

from stallwatch_logs.inputs import Limits
from stallwatch_logs.log_files import InputProblem, expand

# Larger than any buffer, and hardly compressible.
TEXT = "".join(f"line {n} {random.Random(n).random()}\n" for n in range(14_000)).encode()


def read(*paths: str | Path, limits: Limits | None = None) -> tuple[dict[str, bytes], list[InputProblem]]:
    files, problems = expand(paths, limits=limits)
    return {file.name: b"".join(file.chunks(problems)) for file in files}, problems


def write(path: str, data: bytes = b"hello\n") -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)
    return Path(path)


def make_zip(path: str, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def tar_bytes(members: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
