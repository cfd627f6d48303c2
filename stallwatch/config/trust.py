"""Trust a configuration at a default path only if other accounts cannot write to it or the user trusts it.

A configuration can contain commands (``stall.on_stall``) and addresses. If a user starts Stallwatch in
``/tmp`` or in a shared folder, another account could use a configuration file there to run commands as that
user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stallwatch_exporter.settings import own_default
from stallwatch_rules.files import is_own, replace

_MOST_LINKS = 40  # maximum number of symbolic links to follow, as in Linux
_MOST_BYTES = 1 << 20  #: maximum size of a file that can be trusted by its content


class Untrusted(Exception):
    """Raised if a file at a default path must not be read. The message contains the reason."""


def read_if_trusted(path: Path) -> bytes:
    """Return the content of a file at a default path, or raise ``Untrusted``."""
    if not hasattr(os, "geteuid"):  # Windows
        return path.read_bytes()
    with _opened(path) as file:
        # Another account can replace the file at the path after the file is opened. Therefore, `distrust`
        # compares the status of the open file with the file at the path.
        status = os.fstat(file.fileno())
        reason = "it is not a regular file" if not stat.S_ISREG(status.st_mode) else distrust(path, status)
        if reason is None:
            return file.read()
        trusted = trusted_files().get(_key(path))
        if trusted is None:
            raise Untrusted(reason)
        content = file.read(_MOST_BYTES)
        if _digest(content) != trusted:
            raise Untrusted(f"{reason}, and it was changed after you trusted it")
        return content


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading, even if the file is a pipe that no writer has opened."""
    waits = getattr(os, "O_NONBLOCK", 0)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | waits))


def distrust(path: Path, status: os.stat_result | None = None) -> str | None:
    """Return why another account can write or replace this file or folder, or ``None`` if none can.

    `status` is the status of the file if it is already open. The accounts of root and of the user do not
    count.
    """
    if not hasattr(os, "geteuid"):
        return None
    for folder, link in _folders_and_links(path):
        reason = _written_by_others("its folder", folder, folder.stat())
        if reason is None and link is not None:
            reason = _owned_by_another("the link to it", link)
        if reason is not None:
            return reason
    if status is not None and not os.path.samestat(path.stat(), status):
        return "it was replaced while it was read"
    return _written_by_others("it", path, path.stat() if status is None else status)


def _folders_and_links(path: Path) -> Iterator[tuple[Path, os.stat_result | None]]:
    """Follow symbolic links. Yield the folder of each path on the way and the status of each link."""
    for _ in range(_MOST_LINKS):
        status = path.lstat()
        if not stat.S_ISLNK(status.st_mode):
            yield path.parent, None
            return
        yield path.parent, status
        path = path.parent / path.readlink()


def distrust_pages(path: Path, seen: set[Path] | None = None) -> str | None:
    """Return why another account can write rule pages in this folder, or ``None`` if no other account can.

    An entry that cannot be checked, such as a dangling link, is not trusted, because another account could
    create the link's target later. Each folder is checked only once (see `seen`), even if several links point
    to the folder.
    """
    seen = set() if seen is None else seen
    try:
        if reason := distrust(path):
            return reason
        place = path.resolve()
        entries = sorted(path.iterdir()) if path.is_dir() and place not in seen else []
        seen.add(place)
        for entry in entries:
            skipped = entry.name.startswith((".", "_")) or not (entry.suffix == ".md" or entry.is_dir())
            if not skipped and (reason := distrust_pages(entry, seen)):
                return reason if "/" in reason else f"of {entry}: {reason}"
    except OSError as error:
        return f"it cannot be checked ({error.strerror})"
    return None


def _written_by_others(what: str, path: Path, status: os.stat_result) -> str | None:
    if reason := _owned_by_another(what, status):
        return reason
    if stat.S_ISDIR(status.st_mode) and os.statvfs(path).f_flag & os.ST_RDONLY:
        # For example, a ConfigMap has mode 0777, but it is mounted read-only and owned by root.
        return None
    if status.st_mode & stat.S_IWOTH:
        return f"every account can write to {what}"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(path, status):
        return f"the group {_group(status.st_gid)} can write to {what}"
    return None


def _owned_by_another(what: str, status: os.stat_result) -> str | None:
    return None if is_own(status, or_root=True) else f"{what} belongs to {_account(status.st_uid)}"


def _is_private_group(path: Path, status: os.stat_result) -> bool:
    """Return whether the file's group contains only its owner or the user, as is usual with umask 002.

    A group is not private merely because it has no other listed members, because a directory server might not
    list accounts that have the group as their primary group. By convention, a group with the name of the
    account is private.
    """
    # With a POSIX ACL, the group bits also apply to other accounts.
    with suppress(OSError, AttributeError):  # a system other than Linux, or a file system without attributes
        if "system.posix_acl_access" in os.listxattr(path):
            return False
    return any(_is_alone(uid, status.st_gid) for uid in {status.st_uid, os.geteuid()})


@functools.cache  # a directory server can take minutes to list its accounts
def _is_alone(uid: int, gid: int) -> bool:
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    if (group.gr_gid, group.gr_name) != (owner.pw_gid, owner.pw_name) or set(group.gr_mem) - {owner.pw_name}:
        return False
    return all(user.pw_name == owner.pw_name for user in pwd.getpwall() if user.pw_gid == gid)


def _account(uid: int) -> str:
    import pwd

    with suppress(KeyError):
        return f"the account {pwd.getpwuid(uid).pw_name}"
    return f"another account (uid {uid})"


def _group(gid: int) -> str:
    import grp

    with suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


# ---------------------------------------------------------------- trust by content


def trust_file() -> Path:
    """Return the path of the file that lists the user's trusted files."""
    import platformdirs

    return own_default(platformdirs.user_config_path("stallwatch"), ".config/stallwatch") / "trusted.json"


def trusted_files() -> dict[str, str]:
    """Return the digests of the trusted files by path, or {} if other accounts can write the list."""
    path = trust_file()
    try:
        found = json.loads(path.read_bytes()) if distrust(path) is None else {}
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def trust(path: Path) -> Path:
    """Trust a file until it changes. Return the path under which the list of trusted files stores it.

    Raise `OSError` if the file cannot be read, and `Untrusted` if the file is too large or if other
    accounts can write the list.
    """
    with _opened(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise Untrusted("it is larger than 1 MiB")
    key = _key(path)
    _keep({**trusted_files(), key: _digest(content)})
    if key not in trusted_files():
        raise Untrusted(f"the list {trust_file()} cannot be used: {distrust(trust_file())}")
    return Path(key)


def revoke(path: Path) -> bool:
    """Remove a file from the trusted files. Return whether the file was trusted."""
    kept = trusted_files()
    found = kept.pop(_key(path), None) is not None
    if found:
        _keep(kept)
    return found


def state_of(path: str, digest: str) -> str:
    """Return the state of a trusted file: ``trusted``, ``changed``, or ``missing``."""
    try:
        with _opened(Path(path)) as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return "missing"
    return "trusted" if _digest(content) == digest else "changed"


def _key(path: Path) -> str:
    """Return the path with all links in its folder resolved. The file itself can be a link."""
    return str(path.absolute().parent.resolve() / path.name)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _keep(trusted: dict[str, str]) -> None:
    path = trust_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, json.dumps(trusted, indent=2, sort_keys=True).encode())
