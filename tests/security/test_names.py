"""Attacks by the content of a folder of logs: names that terminals obey, and files that are no files."""

from __future__ import annotations

import csv
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch_dashboard.safetext import cell
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.sampling.files import write_csv
from stallwatch_exporter.sampling.rows import Sampling
from stallwatch_logs.inputs import Limits
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.report.markdown import to_markdown
from stallwatch_rules.report.terminal import print_report

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LOG = b"".join(b"step %d/900 loss 1.5\n" % step for step in range(60)) + OOM
HOSTILE = [
    b"rank0\x1b]0;owned\x07.log",  # sets the window's title
    b"rank0\x1b[2J\x1b[H.log",  # clears the screen
    b"rank0\n  rank 0 is healthy\n.log",  # adds lines to the report
    b"rank0\r FINISHED.log",  # writes over the line
    b"rank0\xff\xfe.log",  # is no UTF-8
    "rank0\u202egol.txt.log".encode(),  # turns the direction of writing
    b"rank0\x9b31m.log",  # a terminal code in eight bits
]
OBEYED = [chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), 0x202E)]

Diagnose = Callable[..., Any]


@pytest.fixture
def diagnosed(catalogue: Catalogue) -> Diagnose:
    """Diagnose paths within as long as a test may take."""

    def call(*paths: Path | str) -> Any:
        return diagnose_paths(list(paths), Options(catalogue, limits=Limits()))

    return call


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.parametrize("form", [[], ["--brief"], ["--markdown"], ["--json"], ["--each"]], ids=str)
def test_file_name_with_terminal_codes_is_escaped(tmp_path: Path, form: list[str]) -> None:
    """What the command prints holds no control character and no line that the name brings."""
    for name in HOSTILE:
        (tmp_path / os.fsdecode(name)).write_bytes(LOG)
    gone = [os.path.join(os.fsencode(tmp_path), b"gone" + name) for name in HOSTILE]  # noqa: PTH118
    code = "from stallwatch.cli import main; main()"
    command = [sys.executable, "-c", code, "diagnose", *form, os.fsencode(tmp_path), *gone]
    done = subprocess.run(command, capture_output=True, timeout=120)
    shown = (done.stdout + done.stderr).decode()  # in characters, all of it
    assert done.returncode == 2, "some of the files are not there"
    assert "rank0" in shown
    assert [item for item in OBEYED if item in shown] == []
    assert not any(line.startswith("  rank 0 is healthy") for line in shown.splitlines())


def test_symlink_to_itself_is_reported(tmp_path: Path, diagnosed: Diagnose) -> None:
    """A loop of links is named, and the rest is read."""
    (tmp_path / "rank0.log").write_bytes(LOG)
    (tmp_path / "rank1.log").symlink_to("rank1.log")
    (tmp_path / "folder").symlink_to(".")
    diagnosis, problems = diagnosed(tmp_path)
    assert (diagnosis.verdict, diagnosis.stats.files) == ("failed", 1), problems
    assert [Path(problem.path).name for problem in problems] == ["rank1.log"]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_pipe_or_socket_named_like_a_log_is_skipped(tmp_path: Path, diagnosed: Diagnose, kind: str) -> None:
    """It is skipped with the reason, and Stallwatch does not wait for it."""
    (tmp_path / "rank0.log").write_bytes(LOG)
    special = tmp_path / "rank1.log"
    if kind == "pipe":
        os.mkfifo(special)
    else:
        before = Path.cwd()
        os.chdir(tmp_path)  # the path of a socket is short
        try:
            socket.socket(socket.AF_UNIX).bind(special.name)
        finally:
            os.chdir(before)
    for paths in ([tmp_path], [str(tmp_path / "rank*.log*"), str(tmp_path / "*")]):
        diagnosis, problems = diagnosed(*paths)
        assert diagnosis.verdict == "failed"
        assert {(problem.path, problem.message) for problem in problems} == {
            (str(special), f"this is a {kind}, not a file, and was not read")
        }


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_endless_device_is_reported_as_binary(diagnosed: Diagnose, device: str) -> None:
    """Its output is no text, which its beginning shows."""
    diagnosis, problems = diagnosed(device)
    assert diagnosis.stats.bytes == 0
    assert [problem.message for problem in problems] == ["this is a binary file, not a log"]


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder in which folders lie so deep that Python cannot remove them."""
    folder = tmp_path / "deep"
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def test_folders_a_thousand_levels_deep_are_handled(deep: Path, diagnosed: Diagnose) -> None:
    """No depth that the system allows ends the search, nor the process."""
    before = Path.cwd()
    os.chdir(deep)
    try:
        for _ in range(1100):
            Path("d").mkdir()
            os.chdir("d")
        Path("rank0.log").write_bytes(LOG)
    finally:
        os.chdir(before)
    diagnosis, problems = diagnosed(deep)
    assert (diagnosis.verdict, problems) == ("failed", [])
    print_report(diagnosis, _nowhere(), "en")
    assert "rank0.log" in to_markdown(diagnosis, "en")


def test_path_beyond_the_system_limit_is_handled(deep: Path, diagnosed: Diagnose) -> None:
    """Folders that cannot be reached by their path are named, and the rest is read."""
    (deep / "rank0.log").write_bytes(LOG)
    before = Path.cwd()
    os.chdir(deep)
    try:
        for _ in range(20):
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
        Path("rank1.log").write_bytes(LOG)
    finally:
        os.chdir(before)
    diagnosis, problems = diagnosed(deep)
    assert (diagnosis.verdict, diagnosis.stats.files) == ("failed", 1), problems
    assert len(problems) == 1 and "name too long" in problems[0].message.lower()


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A folder of a process that may not read everything: root becomes another account."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:  # other accounts may not enter those of pytest
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        os.seteuid(user)


def without_rights() -> None:
    if os.geteuid() == 0:
        os.seteuid(65533)


def test_log_without_read_permission_is_reported(somebody: Path, diagnosed: Diagnose) -> None:
    """It is named with what to do, and the others are read."""
    (somebody / "rank0.log").write_bytes(LOG)
    (somebody / "rank1.log").write_bytes(LOG)
    (somebody / "rank0.log").chmod(0o644)
    (somebody / "rank1.log").chmod(0)
    without_rights()
    diagnosis, problems = diagnosed(somebody)
    assert (diagnosis.verdict, diagnosis.stats.files) == ("failed", 1), problems
    (problem,) = problems
    assert problem.path == str(somebody / "rank1.log")
    assert "Permission denied" in problem.message and problem.remedy == "check the permissions"


@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_folder_without_access_permission_is_reported(somebody: Path, diagnosed: Diagnose, mode: int) -> None:
    """The command reports it and ends well, also if the names in the folder are visible."""
    folder = somebody / "logs"
    folder.mkdir()
    (folder / "rank0.log").write_bytes(LOG)
    folder.chmod(mode)
    without_rights()
    diagnosis, problems = diagnosed(folder)
    assert diagnosis.stats.files == 0
    assert problems and all("Permission denied" in problem.message for problem in problems)


@pytest.mark.parametrize("what", ["removed", "cut", "grown", "replaced"])
def test_log_that_changes_during_reading_is_handled(tmp_path: Path, catalogue: Catalogue, what: str) -> None:
    """Whatever happens to one file, the others are read, and nothing is awaited."""
    size = 3 * 1024 * 1024
    log = tmp_path / "rank0.log"
    log.write_bytes(b"loading a shard of the data\n" * (size // 28))
    (tmp_path / "rank1.log").write_bytes(LOG)
    once = threading.Event()

    def change(_read: int, _of: int) -> None:
        if once.is_set():
            return
        once.set()
        if what == "removed":
            log.unlink()
        elif what == "cut":
            os.truncate(log, 10)
        elif what == "grown":
            with log.open("ab") as out:
                out.write(b"x" * size)
        else:
            log.unlink()
            log.mkdir()

    diagnosis, _ = diagnose_paths([tmp_path], Options(catalogue, progress=change))
    assert once.is_set()
    assert diagnosis.verdict == "failed"
    assert diagnosis.primary is not None and diagnosis.primary.rule == "cuda-oom"


@pytest.mark.parametrize("gone", ["log", "folder"])
def test_log_that_disappears_before_reading_is_reported(
    tmp_path: Path, catalogue: Catalogue, gone: str
) -> None:
    """It is named, and the others are read."""
    folder = tmp_path / "node0"
    folder.mkdir()
    (folder / "rank0.log").write_bytes(LOG)
    (tmp_path / "rank1.log").write_bytes(LOG)
    options = Options(catalogue)
    with options.expanded([tmp_path]) as (files, problems, *_):
        (folder / "rank0.log").unlink()
    if gone == "folder":
        folder.rmdir()
    from stallwatch_exporter.postmortem.diagnose import diagnose_run

    diagnosis = diagnose_run(files, problems, [], options).diagnosis
    assert (diagnosis.verdict, diagnosis.stats.files) == ("failed", 1), problems
    assert [Path(problem.path).name for problem in problems] == ["rank0.log"]


FORMULAS = ["=cmd()|x", "+1+1", "-2+3", "@SUM(A1)", "\uff1dHYPERLINK(1)"]


@pytest.mark.parametrize("start", FORMULAS)
def test_formula_in_a_file_name_is_neutralized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """A spreadsheet that opens the table of samples computes nothing."""
    monkeypatch.chdir(tmp_path)
    Path(f"{start}.log").write_bytes(LOG)
    out = io.BytesIO()
    assert write_csv(Sampling([f"{start}.log"]), out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue().decode())))
    assert {row["file"] for row in rows} == {f"'{start}.log"}
    cells = [text for row in rows for text in row.values()]
    assert not [text for text in cells if text[:1] in ("=", "+", "@", "\uff1d", "\t")]


@pytest.mark.parametrize("start", FORMULAS)
def test_formula_in_page_text_is_neutralized(start: str) -> None:
    """The same holds of every table of the dashboard, which the reader may save as CSV; numbers stay."""
    assert cell(start) == f"'{start}"
    assert [cell(text) for text in ("-", "-1.5", "+3e-05", "rank 0")] == ["-", "-1.5", "+3e-05", "rank 0"]


def _nowhere() -> Any:
    from rich.console import Console

    return Console(file=open(os.devnull, "w"))  # noqa: PTH123
