"""Credential files as their owner and the dashboard use them; tests/security tries to bypass them."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stallwatch_exporter.serving.authentication import Access, own_authorization, problems
from stallwatch_exporter.settings import ServerSettings


def written(path: Path, text: str) -> Path:
    """Write a private file of the current user."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def test_own_requests_use_the_configured_credentials(tmp_path: Path) -> None:
    token = written(tmp_path / "token", "\n first \nsecond\n")
    users = written(tmp_path / "users", "ann:pass:word\nbob:x\n")
    assert own_authorization(ServerSettings(token_file=token, basic_auth_file=users)) == "Bearer first"
    basic = own_authorization(ServerSettings(basic_auth_file=users))
    assert base64.b64decode(basic.removeprefix("Basic ")) == b"ann:pass:word"
    assert (
        own_authorization(ServerSettings())
        == own_authorization(ServerSettings(token_file=tmp_path / "x"))
        == ""
    )


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("token_file", "t\n", ""),
        ("token_file", "\n", "must contain a token on each line"),
        ("token_file", None, "cannot be read (No such file or directory)"),
        ("basic_auth_file", "ann:x\n", ""),
        ("basic_auth_file", "ann:x\nbob\n", "must contain user:password on each line"),
    ],
)
def test_file_without_valid_users_is_reported(
    tmp_path: Path, name: str, text: str | None, words: str
) -> None:
    path = tmp_path / "file"
    if text is not None:
        written(path, text)
    found = problems(ServerSettings(**{name: path}))  # type: ignore[arg-type]
    assert len(found) == bool(words) and all(str(path) in line and words in line for line in found)


def test_report_about_a_refused_name_contains_no_secret() -> None:
    said: list[str] = []
    access = Access(ServerSettings(), report=said.append)
    token = "hf_" + "abcdefghijklmnopqr0123456789stuvwx"
    for _ in range(2):
        assert access.refusal([f"{token}.evil.example"], [], []) is not None
    assert len(said) == 1 and token not in said[0] and "evil.example" in said[0]
    assert said[0].endswith("add the name to allowed_hosts under [server] in stallwatch.toml")


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [(0, "run chmod o-r {path}"), (os.ST_RDONLY, "mount it with defaultMode: 0440 (Kubernetes)")],
)
def test_remedy_is_possible_on_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, remedy: str
) -> None:
    path = written(tmp_path / "token", "t\n")
    path.chmod(0o644)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    assert problems(ServerSettings(token_file=path)) == [
        f"every account can read {path}; {remedy.format(path=path)}"
    ]


def test_invalid_allowed_host_is_reported() -> None:
    (line,) = problems(ServerSettings(allowed_hosts=("node7", "*.example.org", "*", "http://node7")))
    assert line.startswith("allowed_hosts under [server]: 'http://node7' is not a hostname; use one")
