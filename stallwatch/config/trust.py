"""The configuration that is found in a folder, and not named, is read only if nobody else can write it.

It may hold commands (``stall.on_stall``) and addresses: in ``/tmp`` or a shared folder, another account could
have them run as whoever starts Stallwatch there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


class Untrusted(Exception):
    """The reason not to read a file that nobody named."""


def read_if_trusted(path: Path) -> bytes:
    """Return the content of a file that was found, or raise ``Untrusted``."""
    status = path.stat()
    reason = _distrust(path, status) if hasattr(os, "geteuid") else None  # not on Windows
    if reason is not None:
        raise Untrusted(reason)
    with path.open("rb") as file:
        if not os.path.samestat(os.fstat(file.fileno()), status):
            raise Untrusted("it was replaced while it was read")
        return file.read()


def _distrust(path: Path, status: os.stat_result) -> str | None:
    for name, owner in (("it", status.st_uid), ("the link to it", path.lstat().st_uid)):
        if owner not in (0, os.geteuid()):
            return f"{name} belongs to {_account(owner)}"
    if status.st_mode & stat.S_IWOTH:
        return "every account can write it"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(path, status):
        return f"the group {_group(status.st_gid)} can write it"
    folder = path.parent.stat().st_mode
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        return "every account can write its folder"
    return None


def _is_own_group(path: Path, status: os.stat_result) -> bool:
    """Whether the group has one member, the file's owner, as each account's own group does (umask 002)."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(status.st_uid), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    if (group.gr_gid, group.gr_name) != (owner.pw_gid, owner.pw_name) or set(group.gr_mem) - {owner.pw_name}:
        return False
    # With a POSIX ACL, the bits of the group are those of other accounts too.
    return not hasattr(os, "listxattr") or "system.posix_acl_access" not in os.listxattr(path)


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
