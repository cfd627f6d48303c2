"""The cache folder: private, complete, and refused if other accounts can write to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stallwatch_rules.matching import disk_cache


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_cache_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "user" / "cache" / "file"
    before = os.umask(0)
    try:
        disk_cache.write(path, b"old")
        disk_cache.write(path, b"new")
    finally:
        os.umask(before)
    assert disk_cache.read(path) == b"new"
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("permission", [0o020, 0o002])
@pytest.mark.parametrize("folder", [False, True])
def test_cache_writable_by_others_is_not_read(tmp_path: Path, permission: int, folder: bool) -> None:
    path = tmp_path / "cache" / "file"
    disk_cache.write(path, b"content")
    open_to_others = path.parent if folder else path
    open_to_others.chmod(mode(open_to_others) | permission)
    assert disk_cache.read(path) is None
    open_to_others.chmod(mode(open_to_others) & ~permission)
    assert disk_cache.read(path) == b"content"


def test_cache_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache" / "file"
    disk_cache.write(path, b"content")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert disk_cache.read(path) is None


def test_links_and_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "missing"):
        assert disk_cache.read(tmp_path / name) is None
    assert disk_cache.read(tmp_path / "nowhere" / "file") is None


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    disk_cache.write(tmp_path / "file", b"old")
    monkeypatch.setattr(Path, "replace", full)
    disk_cache.write(tmp_path / "file", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert disk_cache.read(tmp_path / "file") == b"old"
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        disk_cache.write(tmp_path / "file", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.made").write_bytes(b"")
        os.utime(tmp_path / f"{number}.made", (number, number))
    (tmp_path / "other").write_bytes(b"")
    disk_cache.prune(tmp_path, "*.made", 2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3.made", "4.made", "other"]
