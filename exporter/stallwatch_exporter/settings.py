"""Settings of the exporter, and the folders in which Stallwatch keeps its files."""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from stallwatch_exporter.notices import print_notice
from stallwatch_rules.files import OTHERS_WRITE, account, foreign_part, is_own, is_private

_NOBODY = 65534


def state_home(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Path:
    """Return the state folder: ``$STALLWATCH_HOME``, or the platform's folder for user state."""
    named = (os.environ if environ is None else environ).get("STALLWATCH_HOME")
    if not named:
        return own_default(platformdirs.user_state_path("stallwatch"), ".local/state/stallwatch")
    return user_path(named, current_folder() if cwd is None else cwd)


def cache_home() -> Path:
    """Return the cache folder: ``$STALLWATCH_CACHE``, or the platform's cache folder for the user."""
    named = os.environ.get("STALLWATCH_CACHE")
    if not named:
        return own_default(platformdirs.user_cache_path("stallwatch"), ".cache/stallwatch")
    return user_path(named, current_folder())


def own_default(place: Path, otherwise: str) -> Path:
    """Return `place`, or a folder in this account's home if another account owns part of the path.

    ``sudo -E`` and ``docker run -e HOME=`` keep the ``HOME`` of another account. By placing a link in that
    folder, the other account can choose where root writes. If `place` is below ``HOME``, the folder has the
    same path relative to this account's home. Otherwise, its path relative to that home is `otherwise`.
    """
    foreign = foreign_part(place)
    account_home = _own_home() if foreign is not None else None
    if foreign is None or account_home is None:
        return place
    home = Path.home()
    instead = account_home / (place.relative_to(home) if place.is_relative_to(home) else otherwise)
    if os.path.realpath(instead) != os.path.realpath(place):
        _report_folders_used(foreign, account_home)
    return instead


def _own_home() -> Path | None:
    """Return the recorded home directory of this account, or ``None`` if another account owns it."""
    import pwd

    try:
        home = Path(pwd.getpwuid(account()).pw_dir)
        return home if is_own(home.stat()) else None
    except (KeyError, OSError):  # a container does not always have an entry for its user
        return None


@functools.cache  # report only once in each process
def _report_folders_used(foreign: Path, account_home: Path) -> None:
    print_notice(
        f"{foreign} belongs to another account, so state and cache are stored under {account_home};"
        " to use other folders, set STALLWATCH_HOME and STALLWATCH_CACHE"
    )


def make_home(home: Path) -> None:
    """Create the state folder with mode 700 because it contains logs. An existing folder keeps its mode."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)


def temporary_home(home: Path) -> Path:
    """Return the folder in ``$TMPDIR`` that stores runs while the state folder `home` is not writable."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(home))).hexdigest()[:8]
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"stallwatch-{account()}-{digest}"


def is_own_folder(folder: Path) -> bool:
    """Return whether no other account can replace this temporary folder or write to it."""
    return not why_not_own(folder)


def why_not_own(folder: Path) -> str:
    """Return why other accounts can write to or replace this folder, and a remedy, or "" if none can."""
    try:
        status, around = folder.lstat(), folder.parent.stat()
    except OSError as error:
        return f"{error.strerror}: {error.filename}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder (remove it, or set TMPDIR)"
    if not hasattr(os, "geteuid"):
        return ""
    remedy = "set TMPDIR to a folder that this account owns"
    if not is_own(status):
        return f"{folder} belongs to another account, uid {status.st_uid} ({remedy})"
    if not is_private(status):
        return f"other accounts can write to {folder} (set its mode to 700, or {remedy})"
    # In a sticky folder, only the owner of an entry or of the folder can rename the entry. In a container
    # without root, root's folders seem to belong to the account "nobody".
    if around.st_mode & stat.S_ISVTX:
        safe = is_own(around, or_root=True) or around.st_uid == _NOBODY
    else:
        safe = is_own(around, or_root=True) and not around.st_mode & OTHERS_WRITE
    return "" if safe else f"other accounts can replace files in {folder.parent} ({remedy})"


def user_path(text: str, folder: Path) -> Path:
    """Return the path that a user wrote, with ``~`` expanded and relative paths resolved against `folder`.

    Raises `ValueError` if the text cannot be a path.
    """
    if "\0" in text:
        raise ValueError("must not contain a null character")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"refers to the home directory of an unknown user: {text}") from None


def current_folder() -> Path:
    """Return the working directory, or ``Path(".")`` if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


#: First line of a program for ``python -c``. With this line, the program imports nothing from the current
#: folder, in which another account might have put a file such as json.py. In Python 3.11 and later,
#: ``python -P`` has the same effect.
NO_CURRENT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)\n"


def own_main(module: str) -> list[str]:
    """Return the command that calls ``main`` of a module, regardless of the current folder's content."""
    return [sys.executable, "-c", f"{NO_CURRENT_FOLDER}from {module} import main; main()"]


@dataclass(frozen=True)
class ServerSettings:
    """Access settings of /metrics and the relay, and the hostnames that every server accepts."""

    #: Accepted names, in addition to addresses, ``localhost``, and the machine's names.
    allowed_hosts: tuple[str, ...] = ()
    token_file: Path | None = None  #: bearer tokens, one per line; if set, callers must send a token
    basic_auth_file: Path | None = None  #: ``user:password`` lines for basic authentication
    mistake: str = ""  #: error in these settings that prevents serving, or empty if there is none


@dataclass(frozen=True)
class JoinSettings:
    """Settings that determine how a run's agents find each other and prove that they belong to the run."""

    mode: str = "auto"  #: "auto" to find the other agents, or "off" to keep each agent separate
    run: str = ""  #: name of the run, if no scheduler identifies it
    address: str = ""  #: HOST:PORT of the host that merges reports, or empty for the first host that responds
    secret: str = ""
    host: str = ""  #: address to listen on (if empty and a secret is set, all addresses)
    port: int = 0  #: port to listen on, or 0 to derive the port from the run's key
    tls_certificate: Path | None = None  #: PEM files; if all three are set, mutual TLS replaces the secret
    tls_key: Path | None = None
    tls_ca: Path | None = None


@dataclass(frozen=True)
class ExporterSettings:
    """Settings of Stallwatch on the hosts of a training run."""

    host: str = "127.0.0.1"  #: address on which /metrics listens
    port: int = 19400  #: first port to try, or 0 for a port that the system chooses
    port_tries: int = 50  #: number of ports tried after `port` if it is in use
    reserved_ports: tuple[int, ...] = ()  #: ports to skip in this search because other programs use them
    linger_seconds: float = 30.0  #: maximum seconds to serve /metrics after the command, for the last scrape
    tls_certificate: Path | None = None  #: PEM file; if set, /metrics uses HTTPS
    tls_key: Path | None = None  #: PEM file of the key, if the certificate's file does not contain it
    tls_client_ca: Path | None = None  #: if set, scrapers must present a certificate from this authority
    sd_dir: Path | None = None  #: folder of files that announce endpoints to Prometheus
    server: ServerSettings = field(default_factory=ServerSettings)
    join: JoinSettings = field(default_factory=JoinSettings)
    stall_floor_seconds: float = 30.0  #: minimum time without progress before a stall is reported
    stall_start_seconds: float = 1800.0  #: threshold of a phase while its durations are not known
    stall_factor: float = 3.0  #: threshold = factor * 99th percentile of the phase's own durations
    on_stall: str = "report"  #: action on a stall: "report", "abort", or "command …"
    home: Path = field(default_factory=state_home)
    keep_days: int = 30  #: age in days at which ended runs are removed when another run starts
    keep_gb: float = 10.0  #: Maximum space for ended runs in GB. The oldest runs are removed first.
    probe: bool = True  #: True if ``stallwatch run`` loads a probe into the ranks
    language: str = "en"  #: language of the texts inside a diagnosis: en or zh


def is_own_address(host: str) -> bool:
    """Return whether the host is localhost or a loopback address, so only local programs can connect."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
