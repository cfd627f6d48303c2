"""Find the files of an installed package, or of an archive that is downloaded but not unpacked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from wordings.files import SourceError, Sources, in_folders, in_sdist, in_wheel
from wordings.index import Sdist, fetched, newest_sdist

DOWNLOAD_SECONDS = 600


def installed(package: str) -> Sources:
    """Return the files of a package in the version that this Python imports, without importing it."""
    name = package.replace("-", "_")
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"{package} is not installed here: install it, or use --path DIR or --download")
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Sources(in_folders(Path(folder) for folder in spec.submodule_search_locations), version)


@contextmanager
def downloaded(package: str, version: str = "") -> Iterator[Sources]:
    """Yield the files of the newest release of a package, or of the given version.

    Nothing is installed, built, or run.

    The files come from the wheel that pip selects for this Python. If there is no wheel, or only a wheel of
    an earlier version, the files come from the source archive in the index.
    """
    wanted = requirement(package, version)
    exact = Version(version) if version else None
    with TemporaryDirectory(prefix="stallwatch-verify-") as name:
        wheel, why = _wheel(wanted, Path(name))
        if wheel is not None and exact is not None:
            yield Sources(in_wheel(wheel), version_of(wheel.name))
            return
        sdist: Sdist | None = None
        if os.environ.get("PIP_NO_INDEX", "0").lower() in ("", "0", "false", "no", "off"):
            try:
                sdist = newest_sdist(wanted.name, exact)
            except SourceError as error:
                why = f"{why}; {error}" if why else str(error)
        if wheel is not None and (sdist is None or not _newer(sdist, wheel)):
            yield Sources(in_wheel(wheel), version_of(wheel.name))
        elif sdist is not None:
            yield Sources(in_sdist(sdist.name, fetched(sdist)), str(sdist.version))
        else:
            raise SourceError(f"there is neither a wheel nor a source archive of {wanted}: {why}")


def requirement(package: str, version: str = "") -> Requirement:
    """Return pip's requirement for a name and an optional version. Reject all other pip syntax."""
    try:
        wanted = Requirement(f"{package}=={Version(version)}" if version else package)
    except InvalidVersion as error:
        raise SourceError(f"{version!r} is no version; write it as in 1.2.3") from error
    except InvalidRequirement as error:
        raise SourceError(f"{package!r} is no package's name") from error
    if wanted.name != package:
        raise SourceError(f"{package!r} is more than a package's name; a release is chosen with --version")
    return wanted


def version_of(wheel: str) -> str:
    """Return the version in the filename of a wheel, or an empty string if the name is invalid."""
    try:
        return str(parse_wheel_filename(wheel)[1])
    except InvalidWheelFilename:
        return ""


def _wheel(wanted: Requirement, folder: Path) -> tuple[Path | None, str]:
    """Return the wheel that pip finds, or pip's error message.

    Only wheels are accepted, because pip would run the build of any other archive.
    """
    options = ["--no-deps", "--quiet", "--only-binary", ":all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, "--", str(wanted)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or ["no message"]
        return None, f"pip says: {lines[-1]}"
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip took longer than {DOWNLOAD_SECONDS} s to download {wanted}") from error
    wheels = sorted(folder.glob("*.whl"))
    return (wheels[0], "") if len(wheels) == 1 else (None, f"pip left {len(wheels)} wheels")


def _newer(sdist: Sdist, wheel: Path) -> bool:
    version = version_of(wheel.name)
    return not version or (not sdist.version.is_prerelease and sdist.version > Version(version))
