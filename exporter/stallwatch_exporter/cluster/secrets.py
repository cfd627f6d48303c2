"""Provide the proof that an agent belongs to a run: a configured secret, certificates, or a secret file."""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from stallwatch_exporter.settings import JoinSettings
from stallwatch_rules.files import is_private, open_private

HOW_TO_JOIN = "set the same STALLWATCH_JOIN_SECRET on all hosts, or share the state folder (STALLWATCH_HOME)"
_OTHERS = 0o077
# Length of a secret in a file.
_LENGTH = 64
# Seconds without use of a secret file after which its run is considered ended.
_KEPT_SECONDS = 7 * 86400.0
# Seconds to wait for another agent's secret. NFS can take a minute to show a new file to other hosts
# (acdirmax, nfs(5)).
_RETRIED_SECONDS = 90.0


class NoSecret(Exception):
    """Raised if this agent cannot prove that it belongs to the run. The message is one line for the user."""


@dataclass(frozen=True)
class Secret:
    """Secret for signing proofs. If certificates are configured, also the TLS contexts for both sides."""

    text: bytes
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


def configured_secret(join: JoinSettings) -> Secret | None:
    """Return the configured secret, or ``None`` if none is configured. Raises `NoSecret` if it is invalid."""
    server, client = _contexts(join)
    return Secret(join.secret.encode(), server, client) if join.secret or server is not None else None


class SecretSource:
    """Provide the secret of one run. Call `get` until it returns the secret."""

    def __init__(self, join: JoinSettings, home: Path, key: str) -> None:
        self._join = join
        self._path = home / "join" / key
        self._began: float | None = None

    def get(self, now: float) -> Secret | None:
        """Return the secret, or ``None`` while another agent creates the file with the secret.

        `now` is the time of a monotonic clock. Raises `NoSecret` with the reason if there is no secret.
        """
        if (configured := configured_secret(self._join)) is not None:
            return configured
        self._began = now if self._began is None else self._began
        try:
            text = self._shared()
        except OSError as error:
            raise NoSecret(
                f"this agent cannot join other hosts: {self._path}: {error.strerror or error}; {HOW_TO_JOIN}"
            ) from error
        if text is None:
            if now - self._began < _RETRIED_SECONDS:
                return None
            raise NoSecret(
                f"this agent cannot join other hosts: {self._path} does not contain a secret; {HOW_TO_JOIN}"
            )
        return Secret(text)

    def keep(self) -> None:
        """Mark the file with the secret as used by a current run, so that no other agent removes it."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def _shared(self) -> bytes | None:
        """Create the file with the secret, or read the file that another agent created."""
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not (stat.S_ISDIR(status.st_mode) and is_private(status)):
            raise PermissionError(0, "other accounts can write to the folder of this file")
        with contextlib.suppress(FileExistsError):
            # The server of a network file system evaluates O_EXCL, so only one agent creates the file.
            made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            _prune(folder, self._path.name)
            with os.fdopen(made, "wb") as file:
                file.write(secrets.token_hex(_LENGTH // 2).encode())
        with contextlib.suppress(FileNotFoundError), open_private(self._path, _OTHERS) as file:
            text = file.read(_LENGTH + 1)
            if len(text) == _LENGTH:
                self.keep()
                return text
        return None


def _prune(folder: Path, kept_name: str) -> None:
    """Remove secret files that no agent has used for a long time."""
    oldest = time.time() - _KEPT_SECONDS
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if path.name != kept_name and stat.S_ISREG(status.st_mode) and status.st_mtime < oldest:
                    path.unlink()


def _contexts(join: JoinSettings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Return the TLS contexts for the server and the client. Both are ``None`` if there are no certificates.

    Raises `NoSecret` if the certificates cannot be used.
    """
    given = {"tls_certificate": join.tls_certificate, "tls_key": join.tls_key, "tls_ca": join.tls_ca}
    if not any(given.values()):
        return None, None
    certificate, key, authority = given.values()
    if certificate is None or authority is None or key is None:
        missing = " and ".join(f"join.{name}" for name, path in given.items() if path is None)
        raise NoSecret(
            f"this agent cannot join other hosts: set {missing}, because mutual TLS needs all three files"
        )
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.check_hostname = False  # the certificates of the run are valid at any address
        context.verify_mode = ssl.CERT_REQUIRED
        path = certificate
        try:
            context.load_cert_chain(certificate, key)
            path = authority
            context.load_verify_locations(authority)
        except OSError as error:
            raise NoSecret(f"this agent cannot join other hosts: {path}: {error}") from error
        contexts.append(context)
    return contexts[0], contexts[1]
