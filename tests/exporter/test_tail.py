"""One hazard of log files per test; every check of the file is an explicit poll."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.tailing.follow import Waker
from stallwatch_exporter.tailing.tail import MOST_PER_POLL, FileTailer
from stallwatch_exporter.tailing.tailset import TailSet


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.log"
    path.write_bytes(b"one\n")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def read(tailer: FileTailer) -> bytes:
    """Return the bytes of one poll; '|' marks the start of a new file."""
    return b"".join((b"|" if portion.fresh else b"") + portion.data for portion in tailer.poll())


def test_appended_bytes_are_read_once(log: Path) -> None:
    tailer = FileTailer(log)
    assert read(tailer) == b"one\n"
    assert read(tailer) == b""
    append(log, b"two\nthr")
    assert read(tailer) == b"two\nthr"
    append(log, b"ee\n")
    assert read(tailer) == b"ee\n"


def test_rotation_by_renaming_loses_no_line(log: Path) -> None:
    tailer = FileTailer(log)
    read(tailer)
    append(log, b"two\n")
    log.rename(log.with_suffix(".1"))
    log.write_bytes(b"three\n")
    assert read(tailer) == b"two\n|three\n"
    append(log, b"four\n")
    assert read(tailer) == b"four\n"


def test_late_reopening_writer_is_followed(log: Path) -> None:
    tailer = FileTailer(log)
    read(tailer)
    old = log.with_suffix(".1")
    log.rename(old)
    log.touch()  # logrotate's "create"
    append(old, b"two\n")
    assert read(tailer) == b"two\n"
    append(old, b"three\n")
    append(log, b"four\n")
    assert read(tailer) == b"three\n|four\n"


def test_copytruncate_restarts_reading(log: Path) -> None:
    tailer = FileTailer(log)
    append(log, b"two\n")
    read(tailer)
    shutil.copy(log, log.with_suffix(".1"))
    os.truncate(log, 0)
    assert read(tailer) == b""
    append(log, b"three\n")
    assert read(tailer) == b"|three\n"


def test_copytruncate_is_detected_in_a_larger_file(log: Path) -> None:
    tailer = FileTailer(log)
    read(tailer)
    os.truncate(log, 0)
    append(log, b"a new and longer line\n")
    assert read(tailer) == b"|a new and longer line\n"


def test_hole_of_a_writer_without_append_mode_is_skipped(log: Path) -> None:
    log.write_bytes(b"x" * 100_000 + b"\n")
    with log.open("r+b") as writer:
        writer.seek(0, os.SEEK_END)
        tailer = FileTailer(log)
        read(tailer)
        os.truncate(log, 0)
        writer.write(b"after\n")
    found = read(tailer)
    assert found.startswith(b"|") and found.strip(b"|\0") == b"after\n"
    assert len(found) < 8192


def test_partial_last_line_is_read_again_after_a_restart(log: Path) -> None:
    first = FileTailer(log)
    append(log, b"tw")
    assert read(first) == b"one\ntw"
    position = first.position
    append(log, b"o\n")
    assert read(FileTailer(log, position)) == b"two\n"


def test_restart_reads_nothing_twice(log: Path) -> None:
    first = FileTailer(log)
    read(first)
    first.close()
    append(log, b"two\n")
    second = FileTailer(log, first.position)
    assert read(second) == b"two\n"


@pytest.mark.parametrize("change", ["rotated", "truncated", "rewritten"])
def test_replaced_file_is_read_from_its_start_after_a_restart(log: Path, change: str) -> None:
    first = FileTailer(log)
    read(first)
    position = first.position
    if change == "rotated":
        log.rename(log.with_suffix(".1"))
    log.write_bytes(b"neu\n" if change != "truncated" else b"n\n")
    assert read(FileTailer(log, position)).startswith(b"|n")
    first.close()


def test_file_can_disappear_and_return(log: Path) -> None:
    tailer = FileTailer(log)
    read(tailer)
    append(log, b"two\n")
    log.unlink()
    assert read(tailer) == b"two\n"
    assert read(tailer) == b""
    log.write_bytes(b"three\n")
    assert read(tailer) == b"|three\n"


def test_file_can_appear_later(tmp_path: Path) -> None:
    tailer = FileTailer(tmp_path / "later.log")
    assert read(tailer) == b"" and tailer.modified is None
    (tmp_path / "later.log").write_bytes(b"one\n")
    assert read(tailer) == b"one\n"


def test_named_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    assert read(FileTailer(tmp_path / "pipe.log")) == b""


def test_huge_file_is_read_in_bounded_portions(log: Path) -> None:
    line = b"x" * 1023 + b"\n"
    log.write_bytes(line * (MOST_PER_POLL // 1024 + 10))
    tailer = FileTailer(log)
    assert len(read(tailer)) == MOST_PER_POLL and tailer.more
    assert len(read(tailer)) == 10 * 1024 and not tailer.more


def test_old_content_can_be_skipped(log: Path) -> None:
    append(log, b"two\nthree\n")
    tailer = FileTailer(log)
    assert tailer.skip_to_last(6) == 8
    assert read(tailer) == b"three\n"
    assert FileTailer(log).skip_to_last(1000) == 0


# --- many files


def everything(files: TailSet) -> list[tuple[str, bytes]]:
    return [(path.name, portion.data) for path, portion in files.poll()]


def test_files_that_match_later_are_followed(log: Path) -> None:
    files = TailSet([str(log.parent / "*.log")])
    assert files.discover() == [log]
    assert everything(files) == [("rank0.log", b"one\n")]
    (log.parent / "rank1.log").write_bytes(b"uno\n")
    (log.parent / "other.txt").write_bytes(b"no\n")
    assert [path.name for path in files.discover()] == ["rank1.log"]
    assert everything(files) == [("rank1.log", b"uno\n")]


def test_folders_and_deep_patterns_are_followed(tmp_path: Path) -> None:
    deep = tmp_path / "attempt_0" / "3"
    deep.mkdir(parents=True)
    (deep / "stderr.log").write_bytes(b"x\n")
    for pattern in (str(tmp_path), str(tmp_path / "**" / "std*.log"), str(deep / "stderr.log")):
        files = TailSet([pattern])
        assert files.discover() == [deep / "stderr.log"]
        assert deep in files.folders


def test_binary_file_is_refused_with_a_notice(tmp_path: Path) -> None:
    messages: list[str] = []
    (tmp_path / "a.log").write_bytes(b"\x7fELF" + bytes(range(256)) * 10)
    files = TailSet([str(tmp_path / "*.log")], notice=messages.append)
    assert files.discover() == [] == files.discover()
    assert len(messages) == 1 and "a.log is not a text file" in messages[0]


def test_positions_are_stored(log: Path) -> None:
    first = TailSet([str(log)])
    first.discover()
    everything(first)
    append(log, b"two\n")
    second = TailSet([str(log)], first.positions)
    second.discover()
    assert everything(second) == [("rank0.log", b"two\n")]


# --- waking


def test_change_of_a_file_wakes_the_reader(log: Path) -> None:
    waker = Waker()
    waker.watch([log.parent])
    append(log, b"two\n")
    assert waker.wait(60) == {log}
    (log.parent / "new.log").touch()
    assert waker.wait(60) == {log.parent / "new.log"}
    waker.close()


def test_returned_folder_is_watched_again(tmp_path: Path) -> None:
    folder, waker = tmp_path / "logs", Waker()
    for _ in range(2):
        folder.mkdir()
        waker.watch([folder])
        (folder / "a.log").touch()
        assert folder / "a.log" in waker.wait(60)
        shutil.rmtree(folder)
        waker.wait(60)
    waker.close()


# --- network file systems, a full table, and folders of other accounts


def failing(function: Any, error: OSError, when: Callable[[], bool]) -> Any:
    def call(*arguments: Any, **more: Any) -> Any:
        if when():
            raise error
        return function(*arguments, **more)

    return call


@pytest.mark.parametrize("name", ["fstat", "pread"])
def test_stale_file_handle_is_reopened(log: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    messages: list[str] = []
    files = TailSet([str(log)], notice=messages.append)
    files.discover()
    assert everything(files) == [("rank0.log", b"one\n")]
    stale = True
    error = OSError(errno.ESTALE, "Stale file handle")
    monkeypatch.setattr(os, name, failing(getattr(os, name), error, lambda: stale))
    append(log, b"two\n")
    assert everything(files) == [] == everything(files)
    assert files.positions  # positions can be saved in the meantime
    assert messages == [f"{log} cannot be read at the moment (Stale file handle); trying again"]
    stale = False
    assert everything(files) == [("rank0.log", b"two\n")]
    files.close()


def test_stale_file_does_not_affect_others(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = log.with_name("zz.log")
    append(other, b"one\n")
    files = TailSet([str(log.parent)])
    files.discover()
    everything(files)
    append(log, b"two\n")
    append(other, b"two\n")
    tailer = files.tailers[log]
    monkeypatch.setattr(
        tailer, "_grown", failing(tailer._grown, OSError(errno.EIO, "Input/output error"), lambda: True)
    )
    assert everything(files) == [("zz.log", b"two\n")]


def test_too_many_open_files_are_reported_once_and_retried(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    full = True
    append(log.with_name("other.log"), b"one\n")
    files = TailSet([str(log.parent)], notice=messages.append)
    files.discover()
    error = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(os, "open", failing(os.open, error, lambda: full))
    assert everything(files) == []
    assert len(messages) == 1 and "Too many open files" in messages[0]
    full = False
    assert len(everything(files)) == 2


def test_inaccessible_folder_does_not_affect_others(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as root, who can enter every folder."""
    messages: list[str] = []
    shut = log.parent / "shut"
    refused = PermissionError(errno.EACCES, "Permission denied")
    for name in ("is_file", "is_dir", "exists"):
        real = getattr(Path, name)

        def look(path: Path, real: Any = real) -> Any:
            if path.parent == shut:
                raise refused
            return real(path)

        monkeypatch.setattr(Path, name, look)
    files = TailSet([str(shut / "a.log"), str(shut / "*.log"), str(log)], notice=messages.append)
    for _ in range(2):
        files.discover()
    assert list(files.tailers) == [log]
    assert files.folders
    assert [text.split(" cannot")[0] for text in messages] == [str(shut / "a.log"), str(shut / "*.log")]
