"""Downloaded packages: wheels by pip, source archives from an index; nothing of them is executed."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from wordings.files import SourceError, in_sdist, in_wheel
from wordings.packages import downloaded, requirement, version_of

from stallwatch_logs.inputs import Limits


def sdist(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


class Index:
    """A package index with one project, ``cargo``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.hashes: dict[str, str] = {}
        self.html = False
        self.page: bytes | None = None  #: instead of the list of files
        self.seen: list[tuple[str, str]] = []  #: paths that were asked for, with the login
        self.hosts: dict[str, str] = {}  #: addresses of files that are elsewhere

    def answer(self, path: str) -> bytes | None:
        if path == "/simple/cargo/":
            rows = [
                {
                    "filename": name,
                    "url": self.hosts.get(name, f"../../files/{name}"),
                    "hashes": {"sha256": self.hashes.get(name, hashlib.sha256(content).hexdigest())},
                    "yanked": name.startswith("cargo-66"),
                }
                for name, content in self.files.items()
            ]
            if self.html:
                self.page = b"<!DOCTYPE html><html><body>" + b"".join(
                    f'<a href="{row["url"]}#sha256={row["hashes"]["sha256"]}"'  # type: ignore[index]
                    f"{' data-yanked' * row['yanked']}>{row['filename']}</a><br/>".encode()  # type: ignore[operator]
                    for row in rows
                )
            return self.page if self.page is not None else json.dumps({"files": rows}).encode()
        return self.files.get(path.removeprefix("/files/"))


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index that the environment names; pip finds no wheel."""
    found = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.seen.append((self.path, self.headers.get("Authorization", "")))
            body = found.answer(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    pip(monkeypatch)
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def pip(monkeypatch: pytest.MonkeyPatch, **wheels: dict[str, bytes]) -> list[list[str]]:
    """Let pip leave wheels of these versions of cargo; yield the requested ones."""
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        for version, files in wheels.items():
            wheel(folder / f"cargo-{version.strip('v').replace('_', '.')}-py3-none-any.whl", files)
        if not wheels:
            raise subprocess.CalledProcessError(1, command, stderr="ERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def texts(package: str = "cargo", version: str = "") -> tuple[str, dict[str, str]]:
    with downloaded(package, version) as sources:
        return sources.version, {file.name: file.text() for file in sources.files}


def test_wheel_is_read_without_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    asked = pip(monkeypatch, v1_2={"cargo/crane.py": b"'broke'", "cargo/picture.png": b"x"})
    assert texts() == ("1.2", {"cargo/crane.py": "'broke'"})
    (command,) = asked
    assert command[-2:] == ["--", "cargo"]
    assert command[command.index("--only-binary") + 1] == ":all:"


@pytest.mark.parametrize("count", [0, 2])
def test_unexpected_number_of_wheels_is_an_error(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pip(monkeypatch, **{f"v{number}": {} for number in range(count)})
    with pytest.raises(
        SourceError, match=r"neither a wheel nor a source archive of cargo==9: pip (says|left 2)"
    ):
        texts(version="9")


@pytest.mark.parametrize("html", [False, True])
def test_source_archive_is_read_without_execution(index: Index, html: bool) -> None:
    index.html = html
    ran = b"raise SystemExit('setup.py was run')"
    index.files = {
        "cargo-1.0.tar.gz": sdist({"cargo-1.0/old.py": b""}),
        "cargo-1.9.tar.gz": sdist({"cargo-1.9/crane.py": b"'broke'", "cargo-1.9/setup.py": ran}),
        "cargo-2.0rc1.tar.gz": sdist({"cargo-2.0rc1/next.py": b""}),
        "cargo-66.tar.gz": sdist({"cargo-66/yanked.py": b""}),
        "cargo-3.0-py3-none-win32.whl": b"",
    }
    found = {"cargo-1.9/crane.py": "'broke'", "cargo-1.9/setup.py": ran.decode()}
    assert texts() == ("1.9", found)
    assert texts(version="1.0") == ("1.0", {"cargo-1.0/old.py": ""})
    with pytest.raises(SourceError, match="source archive of cargo==5: pip says: ERROR: No matching"):
        texts(version="5")


def test_newer_source_archive_is_preferred_to_an_older_wheel(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.files = {"cargo-2.0.tar.gz": sdist({"cargo-2.0/crane.py": b""})}
    pip(monkeypatch, v1_2={"cargo/old.py": b""})
    assert texts()[0] == "2.0"
    assert texts(version="1.2")[0] == "1.2"
    pip(monkeypatch, v2_0={"cargo/crane.py": b""})
    assert texts() == ("2.0", {"cargo/crane.py": ""})


def test_archive_with_a_wrong_hash_is_refused(index: Index) -> None:
    index.files = {"cargo-1.0.tar.gz": sdist({"cargo-1.0/crane.py": b""})}
    index.hashes = {"cargo-1.0.tar.gz": "0" * 64}
    with pytest.raises(SourceError, match=r"cargo-1\.0\.tar\.gz is not what the index tells"):
        texts()


def test_credentials_of_the_index_are_sent_only_to_its_host(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.environ["PIP_INDEX_URL"]
    monkeypatch.setenv("PIP_INDEX_URL", plain.replace("://", "://me:p%40ss@"))
    name = "cargo-1.0.tar.gz"
    index.files = {name: sdist({"cargo-1.0/crane.py": b""})}
    login = "Basic " + base64.b64encode(b"me:p@ss").decode()
    texts()
    assert index.seen == [("/simple/cargo/", login), (f"/files/{name}", login)]
    elsewhere = plain.replace("127.0.0.1", "localhost").removesuffix("/simple/")
    index.hosts = {name: f"{elsewhere}/files/{name}"}
    texts()
    assert index.seen[-1] == (f"/files/{name}", "")
    index.page = b'{"files": 7}'
    with pytest.raises(SourceError, match=r"127\.0\.0\.1 does not list the files of cargo") as error:
        texts()
    assert "p@ss" not in str(error.value) and "p%40ss" not in str(error.value)


def test_local_file_urls_are_refused(index: Index, tmp_path: Path) -> None:
    index.files = {"cargo-1.0.tar.gz": b""}
    index.hosts = {"cargo-1.0.tar.gz": tmp_path.as_uri()}
    with pytest.raises(SourceError, match="not on the web: file:"):
        texts()


def test_download_size_is_bounded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.files = {"cargo-1.0.tar.gz": bytes(3 << 20)}
    monkeypatch.setattr("wordings.index.MAX_SDIST", 1 << 20)
    with pytest.raises(SourceError, match="more than 1 MiB"):
        texts()


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("--index-url=http://example.org", ""),
        ("-r/etc/passwd", ""),
        ("cargo @ https://example.org/cargo.whl", ""),
        ("cargo[extra]>1", ""),
        ("./cargo", ""),
        ("", ""),
        ("cargo", "1 --pre"),
        ("cargo", "*"),
    ],
)
def test_invalid_names_and_versions_do_not_reach_pip(
    package: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = pip(monkeypatch)
    with pytest.raises(SourceError):
        texts(package, version)
    assert asked == []
    assert str(requirement("cargo", "1.2")) == "cargo==1.2"


def test_broken_and_oversized_archives_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cargo-1-py3-none-any.whl").write_bytes(b"PK\x03\x04 but no more")
    with pytest.raises(SourceError, match="the zip archive is corrupt"):
        in_wheel(tmp_path / "cargo-1-py3-none-any.whl")
    whole = sdist({f"cargo-1/{number}.py": bytes(1000) for number in range(3)})
    with pytest.raises(SourceError, match=r"cargo-1\.tar\.gz: "):
        in_sdist("cargo-1.tar.gz", whole[:60])
    assert len(in_sdist("cargo-1.tar.gz", whole)) == 3
    monkeypatch.setattr("wordings.files.LIMITS", Limits(members=2))
    with pytest.raises(SourceError, match="more than 2 files"):
        in_sdist("cargo-1.tar.gz", whole)
    monkeypatch.setattr("wordings.files.LIMITS", Limits(expanded=1024))
    with pytest.raises(SourceError, match="expands to more than"):
        in_sdist("cargo-1.tar.gz", whole)
    monkeypatch.setattr("wordings.files.LIMITS", Limits())
    monkeypatch.setattr("wordings.files.MAX_ARCHIVE", 2000)
    with pytest.raises(SourceError, match="of source"):
        in_sdist("cargo-1.tar.gz", whole)


@pytest.mark.parametrize(("name", "version"), [("trl-1.2.3-py3-none-any.whl", "1.2.3"), ("odd.whl", "")])
def test_version_is_read_from_the_name_of_a_wheel(name: str, version: str) -> None:
    assert version_of(name) == version
