"""Check the bearer tokens and passwords of clients that access /metrics and the relay, such as Prometheus.

The files with credentials are read for each request, so that changes are effective immediately.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path

from stallwatch_exporter.serving.hosts import Refusal, normalised, pattern_of, refusal_of
from stallwatch_exporter.settings import ServerSettings
from stallwatch_rules.text.redact import redact

_MOST_BYTES = 64 * 1024
_REALM = 'realm="stallwatch"'


class Access:
    """Decide which requests a server accepts."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        names: Iterable[str] = (),
        tokens: Iterable[str] = (),
        is_authenticated: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Accept the `names` and `tokens` in addition to the names and tokens in the settings.

        `is_authenticated` is true if a client certificate authenticates the connection. `report` is called
        only for the first rejected name, because requests with rejected names can be frequent.
        """
        self._settings = settings
        self._names = normalised((*settings.allowed_hosts, *names))
        self._tokens = frozenset(filter(None, tokens))
        self._is_authenticated = is_authenticated
        self._report: Callable[[str], None] | None = report

    @property
    def has_files(self) -> bool:
        """Return whether the settings name a file of tokens or passwords."""
        return self._settings.token_file is not None or self._settings.basic_auth_file is not None

    @property
    def challenges(self) -> list[tuple[str, str]]:
        """Headers of a 401 response that name the accepted credentials, if any are configured."""
        schemes = [f"Bearer {_REALM}"] if self._settings.token_file or self._tokens else []
        if self._settings.basic_auth_file:
            schemes.append(f'Basic {_REALM}, charset="UTF-8"')
        return [("WWW-Authenticate", scheme) for scheme in schemes]

    def refusal(
        self,
        hosts: Sequence[str],
        origins: Sequence[str],
        authorization: Sequence[str],
        *,
        is_open: bool = False,
    ) -> Refusal | None:
        """Return the reason to reject a request with these headers, or ``None`` to accept it.

        Credentials are required if any are configured, unless the requested page `is_open` to everyone.
        """
        is_known = self._is_known(authorization[0] if len(authorization) == 1 else "")
        if self.challenges and not is_known and not is_open:
            return Refusal(HTTPStatus.UNAUTHORIZED, "the bearer token or password is missing or wrong")
        refusal = refusal_of(hosts, origins, self._names, known_caller=is_known or self._is_authenticated)
        if refusal is not None and refusal.status is HTTPStatus.MISDIRECTED_REQUEST:
            report, self._report = self._report, None
            if report is not None:
                report(f"refused a request: {redact(refusal.reason)}")
        return refusal

    def _is_known(self, authorization: str) -> bool:
        scheme, _, sent = authorization.partition(" ")
        if scheme.lower() == "bearer":
            known = {*_lines(self._settings.token_file), *(token.encode() for token in self._tokens)}
            return _is_one_of(sent.strip().encode("latin-1", "replace"), known)
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(sent.strip(), validate=True)
            except (binascii.Error, ValueError):
                return False
            return _is_one_of(pair, (line for line in _lines(self._settings.basic_auth_file) if b":" in line))
        return False


def own_authorization(settings: ServerSettings) -> str:
    """Return an ``Authorization`` header that servers with these settings accept, or "" if none is needed."""
    for token in _lines(settings.token_file):
        return f"Bearer {token.decode('latin-1')}"
    for pair in _lines(settings.basic_auth_file):
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""


def problems(settings: ServerSettings) -> list[str]:
    """Return the problems with the hostnames and credential files, and their remedies."""
    found = [
        f"allowed_hosts under [server]: {name!r} is not a hostname; use one such as node7 or *.example.org"
        for name in settings.allowed_hosts
        if pattern_of(name) is None
    ]
    for path, wanted in ((settings.token_file, "a token"), (settings.basic_auth_file, "user:password")):
        if path is None:
            continue
        try:
            mode = path.stat().st_mode
            is_fixed = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
            lines = _read(path)
        except OSError as error:
            found.append(f"{path} cannot be read ({error.strerror}); logins fail until it can be read")
            continue
        if mode & stat.S_IROTH:
            remedy = "mount it with defaultMode: 0440 (Kubernetes)" if is_fixed else f"run chmod o-r {path}"
            found.append(f"every account can read {path}; {remedy}")
        if not lines or (path == settings.basic_auth_file and any(b":" not in line for line in lines)):
            found.append(f"{path} must contain {wanted} on each line")
    return found


def _lines(path: Path | None) -> list[bytes]:
    """Return the lines of a credential file, or no lines (which denies all callers) if it is unreadable."""
    try:
        return [] if path is None else _read(path)
    except OSError:
        return []


def _read(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [line.strip() for line in file.read(_MOST_BYTES).splitlines() if line.strip()]


def _is_one_of(sent: bytes, known: Iterable[bytes]) -> bool:
    # Compare with all entries so that the time does not depend on which entry matches.
    matches = [hmac.compare_digest(sent, entry) for entry in known]
    return any(matches)
