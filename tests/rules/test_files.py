"""Owners of files, and files that are replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch_rules.files import is_own, is_private, open_private, open_regular, replace


@pytest.fixture(autouse=True)
def _a_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_owner_of_a_file_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace(path, b"mine", 0o644)
    status = path.stat()
    assert is_own(status) and is_private(status) and not is_private(status, 0o077)
    monkeypatch.setattr(os, "geteuid", lambda: status.st_uid + 1)
    assert not is_own(status) and not is_private(status, 0)
    assert is_own(status, or_root=True) is (status.st_uid == 0)


@pytest.mark.parametrize(("mode", "given"), [(0o600, 0o600), (0o644, 0o644), (None, 0o640)])
def test_replaced_file_keeps_its_mode(tmp_path: Path, mode: int | None, given: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    replace(path, b"new", mode)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", given)
    assert list(tmp_path.iterdir()) == [path]


def test_readable_by_others_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"mine", 0o644)
    with open_private(path) as file:
        assert file.read() == b"mine"
    with pytest.raises(PermissionError), open_private(path, others=0o077):
        raise AssertionError("it was opened")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_only_a_regular_file_is_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "there")
    with pytest.raises(OSError), open_regular(tmp_path / "there"):
        pass
