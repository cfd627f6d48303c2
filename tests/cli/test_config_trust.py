"""A configuration file that was found is read only if no other account can write to it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result

from stallwatch.config import trust
from stallwatch.config.loading import load

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")

ANOTHER = 54321  #: an account that this machine does not have
Stallwatch = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stallwatch.toml"
    path.write_text("[exporter]\nport = 5\n[stall]\non_stall = 'command touch gotcha'\n")
    path.chmod(0o644)
    return path


def belongs_to_another(path: Path) -> None:
    """Change the owner of a path to another account, which only root can do."""
    os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)


root_only = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away"
)


def group_of(monkeypatch: pytest.MonkeyPatch, name: str, members: list[str]) -> None:
    account = SimpleNamespace(pw_name="ann", pw_gid=os.getegid())
    group = SimpleNamespace(gr_name=name, gr_gid=os.getegid(), gr_mem=members)
    monkeypatch.setattr(trust, "_is_alone", functools.cache(trust._is_alone.__wrapped__))
    monkeypatch.setattr("pwd.getpwuid", lambda _: account)
    monkeypatch.setattr("grp.getgrgid", lambda _: group)
    monkeypatch.setattr("pwd.getpwall", lambda: [account])


def reason(file: Path) -> str:
    config = load(environ={}, cwd=file.parent)
    assert config.file is None and config.problems == []
    assert config["exporter.port"] == 19400 and config["stall.on_stall"] == "report"
    (ignored,) = config.ignored
    assert ignored.file == str(file) and f"stallwatch config trust {file}" in str(ignored)
    return ignored.message


def test_own_file_is_read(file: Path) -> None:
    config = load(environ={}, cwd=file.parent)
    assert (config.file, config.ignored, config["exporter.port"]) == (file, [], 5)


@root_only
def test_root_ignores_files_of_other_accounts(file: Path) -> None:
    belongs_to_another(file)
    assert reason(file) == f"ignored, because it belongs to another account (uid {ANOTHER})"
    file.chmod(0o600)
    assert "another account" in reason(file)


@root_only
def test_file_of_root_is_read_by_all_accounts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    assert load(environ={}, cwd=file.parent).file == file


def test_file_of_another_account_is_ignored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if file.stat().st_uid == 0:
        belongs_to_another(file)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER + 1)
    assert "belongs to" in reason(file)


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o777])
def test_world_writable_file_is_ignored(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert reason(file) == "ignored, because every account can write to it"


@pytest.mark.parametrize(
    ("name", "members", "own"),
    [("ann", [], True), ("ann", ["ann"], True), ("ann", ["bob"], False), ("users", [], False)],
)
def test_group_writable_file_is_read_only_if_the_group_is_private(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], own: bool
) -> None:
    group_of(monkeypatch, name, members)
    file.chmod(0o664)
    if own:
        assert load(environ={}, cwd=file.parent).file == file
    else:
        assert reason(file) == f"ignored, because the group {name} can write to it"


@pytest.mark.skipif(sys.platform != "linux", reason="POSIX ACLs are Linux's")
def test_group_writable_file_with_an_access_list_is_ignored(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_of(monkeypatch, "ann", [])
    file.chmod(0o664)
    monkeypatch.setattr(os, "listxattr", lambda _: ["system.posix_acl_access"])
    assert "can write to it" in reason(file)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
def test_file_in_a_world_writable_folder_is_ignored(file: Path, mode: int) -> None:
    file.parent.chmod(mode)
    assert reason(file) == "ignored, because every account can write to its folder"


@pytest.mark.parametrize(("name", "own"), [("ann", True), ("users", False)])
def test_group_writable_folder_is_accepted_only_if_the_group_is_private(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, own: bool
) -> None:
    group_of(monkeypatch, name, [])
    file.parent.chmod(0o775)
    if own:
        assert load(environ={}, cwd=file.parent).file == file
    else:
        assert reason(file) == "ignored, because the group users can write to its folder"


def test_primary_group_of_another_account_is_not_private(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group_of(monkeypatch, "ann", [])
    bob = SimpleNamespace(pw_name="bob", pw_gid=os.getegid())
    monkeypatch.setattr("pwd.getpwall", lambda: [bob])
    file.chmod(0o664)
    assert reason(file) == "ignored, because the group ann can write to it"


@root_only
def test_file_of_root_can_be_writable_by_the_users_private_group(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_of(monkeypatch, "ann", [])
    ann = SimpleNamespace(pw_name="ann", pw_gid=os.getegid())
    root = SimpleNamespace(pw_name="root", pw_gid=ANOTHER)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: ann if uid == ANOTHER else root)
    file.chmod(0o664)
    assert "can write to it" in reason(file)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    assert load(environ={}, cwd=file.parent).file == file


def test_accounts_are_listed_once_for_all_rule_pages(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group_of(monkeypatch, "ann", [])
    listed = []
    monkeypatch.setattr("pwd.getpwall", lambda: listed.append(1) or [])
    rules = file.parent / "rules"
    rules.mkdir()
    for page in [rules / f"{number}.md" for number in range(20)]:
        page.touch()
        page.chmod(0o664)
    rules.chmod(0o775)
    file.write_text("[rules]\ndirs = ['rules']\n")
    assert load(environ={}, cwd=file.parent)["rules.dirs"] == (rules,)
    assert 1 <= len(listed) <= 2  # the owner and the user


@root_only
def test_file_in_the_folder_of_another_account_is_ignored(file: Path) -> None:
    belongs_to_another(file.parent)
    assert reason(file) == f"ignored, because its folder belongs to another account (uid {ANOTHER})"


@root_only
def test_link_of_another_account_is_ignored(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "shared" / "stallwatch.toml"
    link.parent.mkdir()
    link.symlink_to(file)
    belongs_to_another(link)
    assert reason(link).startswith("ignored, because the link to it belongs to another account")


def test_explicitly_named_file_is_read_regardless_of_its_permissions(file: Path) -> None:
    file.chmod(0o666)
    assert load(file, environ={})["exporter.port"] == 5
    assert load(environ={"STALLWATCH_CONFIG": str(file)}, cwd=file.parent)["exporter.port"] == 5


def test_user_file_replaces_an_ignored_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chmod(0o666)
    of_user = tmp_path / "config-home" / "stallwatch" / "stallwatch.toml"
    of_user.parent.mkdir(parents=True)
    of_user.write_text("[exporter]\nport = 6\n")
    of_user.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    config = load(environ={}, cwd=tmp_path)
    assert (config.file, len(config.ignored), config["exporter.port"]) == (of_user, 1, 6)


def test_config_show_names_the_file_that_was_read_or_ignored(stallwatch: Stallwatch, file: Path) -> None:
    assert f"file: {file}\n" in stallwatch("config", "show").stdout
    file.chmod(0o666)
    result = stallwatch("config", "show")
    assert result.exit_code == 0
    assert f"file: {file} (ignored, because every account can write to it)" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        f"stallwatch: {file}: ignored, because every account can write to it; its settings"
    )


def test_run_does_not_run_the_command_of_an_ignored_file(
    process: Callable[..., object], tmp_path: Path
) -> None:
    file = tmp_path / "stallwatch.toml"
    file.write_text("[exporter]\nport = 'not a port'\n")
    file.chmod(0o666)
    done = process("run", "--port", "0", "--", "true")
    assert done.returncode == 0  # type: ignore[attr-defined]
    assert done.stderr.count("ignored, because") == 1 and "exporter.port" not in done.stderr  # type: ignore[attr-defined]


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """Return a folder like a ConfigMap volume with an fsGroup: root's, mode 2777, files are links."""
    folder = tmp_path / "config"
    version = folder / "..2026_11_26_17_00_00.1234567890"
    version.mkdir(parents=True)
    (version / "stallwatch.toml").write_text("[exporter]\nport = 7\n[rules]\ndirs = ['.']\n")
    (version / "stallwatch.toml").chmod(0o644)
    (folder / "..data").symlink_to(version.name)
    (folder / "stallwatch.toml").symlink_to("..data/stallwatch.toml")
    version.chmod(0o755)
    folder.chmod(0o2777)
    return folder


def test_config_map_on_a_read_only_volume_is_read(config_map: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(environ={}, cwd=config_map).file is None
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    config = load(environ={}, cwd=config_map)
    assert (config.file, config.ignored) == (config_map / "stallwatch.toml", [])
    assert (config["exporter.port"], config["rules.dirs"]) == (7, (config_map,))


def test_read_only_mount_does_not_excuse_file_permissions_or_owner(
    config_map: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    file = (config_map / "stallwatch.toml").resolve()
    file.chmod(0o666)  # the file may be writable on another host
    assert load(environ={}, cwd=config_map).file is None
    file.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    assert (load(environ={}, cwd=config_map).file is None) == (file.stat().st_uid != 0)


def test_trust_is_given_listed_and_revoked(stallwatch: Stallwatch, file: Path) -> None:
    file.chmod(0o666)
    assert stallwatch("config", "trust").output == ""
    assert stallwatch("config", "trust", "stallwatch.toml").output == f"trusted: {file}, until it changes\n"
    assert stallwatch("config", "trust").output == f"trusted  {file}\n"
    shown = stallwatch("config", "show")
    assert f"file: {file}\n" in shown.stdout and "ignored" not in shown.output
    text = file.read_text()
    file.write_text(text + "\n")
    assert stallwatch("config", "trust").output == f"changed  {file}\n"
    file.write_text(text)
    assert stallwatch("config", "trust", "--revoke", "stallwatch.toml").exit_code == 0
    assert stallwatch("config", "trust").output == ""
    assert "(ignored, because every account can write to it)" in stallwatch("config", "show").stdout


def test_trust_reports_missing_files(stallwatch: Stallwatch, file: Path) -> None:
    stallwatch("config", "trust", str(file))
    file.unlink()
    assert stallwatch("config", "trust").output == f"missing  {file}\n"
    done = stallwatch("config", "trust", "none.toml")
    assert (done.exit_code, "none.toml: No such file or directory" in done.stderr) == (1, True)
    done = stallwatch("config", "trust", "--revoke", "none.toml")
    assert done.exit_code == 1 and "was not trusted" in done.stderr
    done = stallwatch("config", "trust", "--revoke")
    assert done.exit_code == 2 and "--revoke requires FILE" in done.stderr


def test_files_that_cannot_be_trusted_are_refused(stallwatch: Stallwatch, file: Path, tmp_path: Path) -> None:
    file.write_text("#" * (1 << 20) + "\n")
    done = stallwatch("config", "trust", str(file))
    assert done.exit_code == 1 and "cannot be trusted: it is larger than 1 MiB" in done.stderr
    file.write_text("")
    folder = tmp_path / "config-home" / "stallwatch"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    done = stallwatch("config", "trust", str(file))
    assert done.exit_code == 1 and "cannot be used: every account can write to its folder" in done.stderr
