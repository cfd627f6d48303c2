"""Read a few uploads at a time, each in a separate process, and forward the progress reports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from stallwatch_dashboard.settings import DashboardSettings
from stallwatch_dashboard.uploads.reader import Answer, Task
from stallwatch_exporter.settings import own_main
from stallwatch_logs.inputs import InputProblem, Limits
from stallwatch_logs.parallel_reading import default_workers
from stallwatch_rules.decoding import from_msgpack

_BLOCK = 1 << 20
_LONGEST = 120
_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f/\\]")


def safe_name(name: str, number: int) -> str:
    """Return a safe filename for an upload. The name keeps the rank and extensions of the original name."""
    last = _UNSAFE_CHARACTERS.sub("_", re.split(r"[/\\]", name)[-1]).strip()
    last = last[-_LONGEST:]
    while len(last.encode("utf-8", "replace")) > _LONGEST:
        last = last[1:]
    if last in ("", ".", "..") or last.startswith("-"):
        last = f"upload{last}" if last.startswith("-") else f"upload-{number}"
    return last.encode("utf-8", "replace").decode("utf-8")


@contextmanager
def spooled(files: Sequence[tuple[str, BinaryIO]], home: Path) -> Iterator[tuple[Path, list[str]]]:
    """Write the files to a temporary private folder and yield the folder and the paths of the files.

    Files with the same name are stored in separate folders.
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


_AT_ONCE = 2
_turns = threading.BoundedSemaphore(_AT_ONCE)
_MIB = 1024 * 1024
# The ratio limit applies from this expanded size. It is small, because any user can upload files.
_RATIO_FROM = 64 * _MIB


class ReadingFailed(Exception):
    """Raised with the exit code if the reading process ended without a result."""


def limits_of(settings: DashboardSettings) -> Limits:
    return Limits(
        members=settings.max_members,
        expanded=settings.max_expanded_mb * _MIB,
        ratio=settings.max_ratio,
        ratio_from=_RATIO_FROM,
        section="dashboard",
    )


def read_uploads(
    files: Sequence[tuple[str, BinaryIO]],
    settings: DashboardSettings,
    progress: Callable[[int, int], None],
    waiting: Callable[[], object] = lambda: None,
    *,
    healthy: Sequence[tuple[str, BinaryIO]] = (),
    job: str = "",
    together: bool = False,
) -> Answer:
    """Diagnose the files. If there are files of a `healthy` run, compare the diagnosis with that run.

    If the files belong to several jobs, read only the files of `job`. If `together` is true, read all files
    as one run. Call ``waiting`` if other uploads must be read first.

    If ``progress`` raises an exception (for example, because the user closed the page), kill the process
    immediately. Raise `ReadingFailed` if the process ended without a result, and ``OSError`` if files cannot
    be written.
    """
    if not _turns.acquire(blocking=False):
        waiting()
        _turns.acquire()
    try:
        with spooled([*files, *healthy], settings.home) as (folder, names):
            answer = folder.with_name(folder.name + ".answer")
            task = Task(
                names=names[: len(files)],
                rules=list(settings.rules),
                limits=limits_of(settings),
                workers=default_workers(),
                answer=str(answer),
                healthy=names[len(files) :],
                job=job,
                together=together,
            )
            try:
                _run(task, folder, progress)
                return from_msgpack(answer.read_bytes(), Answer)
            finally:
                answer.unlink(missing_ok=True)
    finally:
        _turns.release()


def _run(task: Task, folder: Path, progress: Callable[[int, int], None]) -> None:
    with subprocess.Popen(
        own_main("stallwatch_dashboard.uploads.reader"),
        cwd=folder,
        # The child processes of the reader must not import modules from the folder of uploaded files, either.
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(msgspec.json.encode(task))
            process.stdin.close()
            done = False
            for line in process.stdout:
                report = msgspec.json.decode(line)
                done = report == "done"
                if not done:
                    progress(*report)
        except BaseException:
            process.kill()
            raise
    if not done or process.returncode:
        raise ReadingFailed(f"exit code {process.returncode}")


def too_much(files: Sequence[tuple[str, int]], most_mb: int) -> InputProblem | None:
    """If the files (name, bytes) are too large in total, return a message. Otherwise, return None."""
    total = sum(size for _, size in files)
    if total <= most_mb * _MIB:
        return None
    name, size = max(files, key=lambda file: file[1])
    return InputProblem(
        name,
        None,
        f"the files total {total / _MIB:,.0f} MiB, which exceeds the limit of {most_mb:,} MiB; this file"
        f" is the largest ({size / _MIB:,.0f} MiB)",
        "omit some files, compress the files, or run stallwatch diagnose on the host where they are stored",
    )
