"""A PostgreSQL server for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any


def programs() -> Path | None:
    """Return the folder of the server's programs, which Debian keeps out of the PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


class Postgres:
    """Server with a socket in its own folder; it runs under another account, because it refuses root."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user: dict[str, Any] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="stallwatch-pg-"))
        if os.getuid() == 0:
            user = next(each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody"))
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid}
        self._run("initdb", "-D", "data", "-A", "trust", "-U", "watcher", "--no-sync")
        self._databases = 0
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c fsync=off"
        self._run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self) -> None:
        """Stop the server as a crash of its machine does: it waits for no client."""
        self._run("pg_ctl", "-D", "data", "-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        self._databases += 1
        name = f"alerts{self._databases}"
        self._run("createdb", "-h", str(self.folder), "-U", "watcher", name)
        return f"postgresql://watcher@/{name}?host={self.folder}"

    def close(self) -> None:
        """Stop the server, and remove its folder."""
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            **self._user,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()}")
