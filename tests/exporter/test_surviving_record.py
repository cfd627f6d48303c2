"""The record of a run survives a state folder that is full, read-only or gone."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agentcases import OOM

from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.runs.copies import RankCopies
from stallwatch_exporter.runs.reserve import NAME, SIZE, Reserve, append_whole
from stallwatch_exporter.runs.runfolder import (
    RunFolder,
    kept_runs,
    mark_reported,
    read_diagnosis,
    read_info,
    runs_home,
)
from stallwatch_exporter.settings import temporary_home
from stallwatch_rules.endings import Ending
from stallwatch_rules.files import replace
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.messages import has
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Place, UnknownException

PLACE = Place(0, "out", 1, None, None, "ValueError")


class Disk:
    """Disk on which `left` more writes below `home` succeed; a full disk also allows writes in place."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        self.error = errno.ENOSPC
        self._home = str(home)
        write, pwrite, mkdir = os.write, os.pwrite, Path.mkdir

        def name(fd: int) -> str:
            return str(Path(f"/proc/self/fd/{fd}").readlink())

        def patched_write(fd: int, data: Any) -> int:
            self._take(name(fd))
            return write(fd, data)

        def patched_replace(path: Path, *args: Any, **options: Any) -> None:
            self._take(str(path))
            replace(path, *args, **options)

        def patched_pwrite(fd: int, data: Any, at: int) -> int:
            if self.error != errno.ENOSPC or os.fstat(fd).st_size < at + len(data):
                self._take(name(fd))
            return pwrite(fd, data, at)

        def patched_mkdir(path: Path, *args: Any, **options: Any) -> None:
            if not path.exists():
                self._take(str(path))
            mkdir(path, *args, **options)

        monkeypatch.setattr(os, "write", patched_write)
        monkeypatch.setattr("stallwatch_exporter.runs.runfolder.replace", patched_replace)
        monkeypatch.setattr(os, "pwrite", patched_pwrite)
        monkeypatch.setattr(Path, "mkdir", patched_mkdir)

    def _take(self, path: str) -> None:
        if path.startswith(self._home):
            if self.left <= 0:
                raise OSError(self.error, os.strerror(self.error), path)
            self.left -= 1


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def disk(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path / "home", monkeypatch)


def failed(run: Any) -> None:
    run.steps(1, 10)
    run.say(*OOM)
    run.wait(5)
    run.end()


def kept_verdict(home: Path, catalogue: Catalogue) -> tuple[str, str]:
    """Return verdict and cause from the folder that `stallwatch runs` finds, after the agent's end."""
    ((folder, info),) = kept_runs(home)
    assert info.ending is not None and info.state == "failed" and info.ended_at is not None
    found, problems = diagnose_paths([folder], Options(catalogue))
    assert problems == [] and found.primary is not None
    return found.verdict, found.primary.rule


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("writes", [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 40])
def test_verdict_survives_any_failing_write(
    watch: Callable[..., Any], tmp_path: Path, catalogue: Catalogue, disk: Disk, writes: int, error: int
) -> None:
    disk.left, disk.error = writes, error
    run = watch()
    failed(run)
    assert run.agent.errors == 0
    assert kept_verdict(tmp_path / "home", catalogue) == ("failed", "cuda-oom")


def test_full_disk_leaves_the_ending_in_the_reserved_block(
    watch: Callable[..., Any], tmp_path: Path, catalogue: Catalogue, disk: Disk
) -> None:
    run = watch()
    run.steps(1, 10)
    disk.left = 0
    run.say(*OOM)
    run.wait(5)
    run.end()
    folder = runs_home(tmp_path / "home") / "sft"
    assert run.folder.path == folder and not run.folder.moved
    assert not (folder / "diagnosis.json").exists() and (folder / NAME).stat().st_size == SIZE
    found, problems = diagnose_paths([folder], Options(catalogue))
    assert problems == [] and found.in_trouble
    assert any(has(note, "diagnosis.partial-record") for note in found.notes)
    assert any(has(note, "diagnosis.partial-copies") for note in found.notes)
    info = read_info(folder)
    assert info is not None and info.partial == os.strerror(errno.ENOSPC)
    assert [gap.lines for gap in info.gaps] == [5]  # the lines of the last step and of the exception


@pytest.mark.parametrize("killed", [False, True], ids=["its agent", "the next agent"])
@pytest.mark.parametrize("room", [0, 1, 99], ids="{} writes".format)
def test_verdict_survives_later_records(
    watch: Callable[..., Any], tmp_path: Path, catalogue: Catalogue, disk: Disk, room: int, killed: bool
) -> None:
    """The record is also updated when the run's incidents have been sent."""
    run = watch()
    run.folder.write_info(reported=False)
    run.steps(1, 10)
    disk.left = 0
    run.say(*OOM)
    run.wait(5)
    run.end()
    info = read_info(run.folder.path)
    assert info is not None and not info.reported
    disk.left = room
    if killed:
        mark_reported(run.folder.path, info)
    else:
        run.folder.write_info(reported=True)
    noted = read_info(run.folder.path)
    assert noted is not None and noted.reported == (room > 0 or not killed)
    assert kept_verdict(tmp_path / "home", catalogue) == ("failed", "cuda-oom")
    assert (run.folder.path / NAME).exists() == (killed or room < 99)
    assert noted.partial == info.partial or not killed  # data in the memory of the killed agent are lost


def test_complete_diagnosis_has_precedence_over_the_reserve(tmp_path: Path, disk: Disk) -> None:
    folder = RunFolder.create("sft", ["python"], home=tmp_path / "home")
    folder.write_info(reported=False)
    diagnosis = Diagnosis("failed", notes=["n" * 100] * 1000)
    disk.left = 2  # enough writes for the diagnosis, and no more
    folder.keep_end(diagnosis, ended_at=folder.info.updated_at)
    disk.left = 1
    folder.close(diagnosis)
    info, disk.left = read_info(folder.path), 99
    assert info is not None and info.ended_at is not None and not info.reported
    mark_reported(folder.path, info)
    noted, kept = read_info(folder.path), read_diagnosis(folder.path)
    assert noted is not None and noted.reported and noted.partial == info.partial != ""
    assert kept is not None and kept.notes == diagnosis.notes


def test_run_with_only_a_record_still_failed(
    watch: Callable[..., Any], catalogue: Catalogue, temporary: Path
) -> None:
    run = watch()
    failed(run)
    for path in (
        *run.folder.path.glob("*.log"),
        *run.folder.path.glob("*/*.log"),
        run.folder.path / "diagnosis.json",
    ):
        path.unlink()
    found, problems = rendered(diagnose_paths([run.folder.path], Options(catalogue)))
    assert problems == [] and found.in_trouble
    assert (
        "No output of the run was kept, so this diagnosis is based only on the record of how the run ended."
        in found.notes
    )


def test_successful_run_needs_no_log_copy(
    watch: Callable[..., Any], catalogue: Catalogue, temporary: Path
) -> None:
    run = watch()
    run.steps(1, 10, total=10)
    run.end("finished", 0)
    (run.folder.path / "output.log").unlink()
    found, problems = diagnose_paths([run.folder.path], Options(catalogue))
    assert problems == [] and found.verdict == "finished"


def test_freed_space_completes_the_record(watch: Callable[..., Any], disk: Disk) -> None:
    run = watch()
    run.steps(1, 10)
    disk.left = 0
    run.steps(11, 20)
    disk.left = 10**9
    run.say(*OOM)
    run.wait(5)
    run.end()
    info = read_info(run.folder.path)
    assert info is not None and info.partial == "" and info.gaps == []
    assert not (run.folder.path / NAME).exists() and len(run.kept_incidents) >= 2
    steps = (run.folder.path / "output.log").read_text()
    assert all(f"step {step}/1000" in steps for step in range(1, 21))


@pytest.mark.parametrize(
    "is_whole", [True, False], ids=["the state folder is gone", "the run's folder is gone"]
)
def test_folder_removed_during_the_run_is_recreated(
    watch: Callable[..., Any], tmp_path: Path, catalogue: Catalogue, temporary: Path, is_whole: bool
) -> None:
    run, home = watch(), tmp_path / "home"
    run.steps(1, 10)
    shutil.rmtree(home if is_whole else run.folder.path)
    run.say(*OOM)
    run.wait(5)
    run.end()
    assert home.exists() is not is_whole  # a mount that is gone is not created again below
    assert run.folder.path.is_relative_to(temporary_home(home) if is_whole else home)
    assert kept_verdict(home, catalogue) == ("failed", "cuda-oom")
    assert read_info(run.folder.path).partial  # type: ignore[union-attr]


def test_record_elsewhere_is_found_from_the_first_folder(
    watch: Callable[..., Any], tmp_path: Path, catalogue: Catalogue, disk: Disk
) -> None:
    run = watch()
    first = run.folder.path
    run.steps(1, 10)
    disk.left, disk.error = 0, errno.EROFS
    run.say(*OOM)
    run.wait(5)
    run.end()
    assert run.folder.path != first and run.sent[-1].folder == str(run.folder.path)
    assert has(run.sent[-1].kept, "run.kept-elsewhere")  # chat messages name the folder
    found, problems = diagnose_paths([first], Options(catalogue))
    assert problems == [] and (found.verdict, found.primary and found.primary.rule) == ("failed", "cuda-oom")


def test_missing_writable_place_is_reported(
    watch: Callable[..., Any], tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.left = 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    run = watch()
    failed(run)
    assert run.folder.problem is not None and run.sent[-1].folder == ""
    assert "could not be saved anywhere" in render(run.sent[-1].kept)
    assert kept_runs(tmp_path / "home") == []


def test_place_found_at_the_end_gets_record_and_last_lines(
    watch: Callable[..., Any],
    tmp_path: Path,
    catalogue: Catalogue,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk.left = 0
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    run = watch()
    run.steps(1, 10)
    disk.left = 10**9
    run.say(*OOM)
    run.end()
    assert run.folder.problem is None and len(run.kept_incidents) >= 1
    assert kept_verdict(tmp_path / "home", catalogue) == ("failed", "cuda-oom")
    assert "step 1/1000" in (run.folder.path / "output.log").read_text()


def test_writable_folder_of_others_in_tmpdir_is_not_used(tmp_path: Path, temporary: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    foreign = temporary_home(home)
    foreign.mkdir()
    foreign.chmod(0o777)
    folder = RunFolder.create("sft", ["x"], home=home)
    assert folder.problem is not None and str(foreign) in folder.problem
    foreign.rmdir()
    (tmp_path / "target").mkdir()
    foreign.symlink_to(tmp_path / "target")
    assert RunFolder.create("sft", ["x"], home=home).problem is not None
    assert list((tmp_path / "target").iterdir()) == []


def test_run_elsewhere_does_not_reuse_a_name(tmp_path: Path, disk: Disk) -> None:
    RunFolder.create("sft", ["x"], home=tmp_path / "home", now=1.0)
    disk.left = 0
    other = RunFolder.create("sft", ["x"], home=tmp_path / "home", now=2.0)
    assert other.run == "sft-2" and other.moved and other.problem is None
    assert [info.run for _, info in kept_runs(tmp_path / "home")] == ["sft-2", "sft"]


def test_record_too_large_for_the_block_is_shortened(tmp_path: Path, disk: Disk) -> None:
    folder = RunFolder.create("sft", ["x" * 200] * 5000, home=tmp_path / "home", now=1.0)
    unknown = [
        UnknownException("ValueError", "m" * 500, [rank], 1, PLACE, ["f" * 500]) for rank in range(500)
    ]
    ending = Ending("failed", 1, codes=dict.fromkeys(range(20_000), 1))
    disk.left = 0
    diagnosis = Diagnosis("unknown-failure", unknown=unknown)
    folder.keep_end(diagnosis, updated_at=5.0, ended_at=5.0, ending=ending)
    folder.close(diagnosis)
    kept, info = read_diagnosis(folder.path), read_info(folder.path)
    assert kept is not None and kept.verdict == "unknown-failure"
    assert info is not None and info.ended_at == 5.0
    assert info.ending is not None and (info.ending.kind, info.ending.exit_code) == ("failed", 1)


def test_failed_append_leaves_no_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "incidents.jsonl", os.write
    append_whole(path, b"one\n")
    room = [2]

    def short(fd: int, data: Any) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, data[: room.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(OSError, match="full"):
            append_whole(path, b"two\n")
    append_whole(path, b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


def test_reserve_needs_space_once(tmp_path: Path, disk: Disk) -> None:
    (tmp_path / "home").mkdir()
    reserve = Reserve(tmp_path / "home" / NAME)
    disk.left = 0
    assert reserve.write(b"{}") and (tmp_path / "home" / NAME).read_bytes().strip() == b"{}"
    with pytest.raises(OSError, match="No space"):
        Reserve(tmp_path / "home" / "other")
    assert not (tmp_path / "home" / "other").exists()


def test_log_copies_wait_in_memory_and_mark_gaps(tmp_path: Path, disk: Disk) -> None:
    folder = RunFolder.create("sft", [], home=tmp_path / "home").path
    notices: list[str] = []
    copies = RankCopies(folder, str, notices.append)
    disk.left = 0
    line = b"x" * 9_999 + b"\n"
    for second in range(500):  # 5 MB
        copies.write("out", "stdout", line, 1000.0 + second)
        copies.flush(1000.0 + second)
    assert copies.lost and len(notices) == 1
    disk.left = 10**9
    copies.flush(1500.0)
    kept = (folder / "output.log").read_bytes().count(b"\n")
    assert kept + copies.lost == 500 and 300 < kept < 500
    (gap,) = copies.gaps
    assert gap.lines == copies.lost and (gap.since, int(gap.until)) == (1000.0, 999 + copies.lost)


def test_small_disk_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 64 MB never has 512 MB free."""
    folder = RunFolder.create("sft", [], home=tmp_path / "home").path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type(usage)(64 * 2**20, 4 * 2**20, 60 * 2**20))
    copies = RankCopies(folder, str, pytest.fail)
    copies.write("out", "stdout", b"step 1\n", 1000.0)
    copies.flush(1000.0)
    assert (folder / "output.log").exists() and copies.lost == 0


def test_last_lines_are_written_on_a_nearly_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create("sft", [], home=tmp_path / "home").path
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type(usage)(2**40, 2**40 - 2**20, 2**20))
    copies = RankCopies(folder, str, lambda _: None)
    copies.write("out", "stdout", b"RuntimeError: the last word\n", 1000.0)
    copies.flush(1000.0)
    assert not (folder / "output.log").exists()
    copies.flush(1001.0, everything=True)
    assert b"the last word" in (folder / "output.log").read_bytes() and copies.gaps == []
