"""Where a package's files are: installed here, in a folder, or downloaded into a temporary one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stallwatch.source_strings import SUFFIXES

DOWNLOAD_SECONDS = 600


class SourceError(Exception):
    """The package's source is not at hand; says why and what to do."""


class Sources(NamedTuple):
    """A package's files."""

    folders: list[Path]
    version: str  #: empty where it is not known

    def files(self) -> list[Path]:
        """All that may hold messages, in an order that does not change."""
        found = (path for folder in self.folders for path in folder.rglob("*"))
        return sorted(p for p in found if (p.name.endswith(SUFFIXES) or ".so." in p.name) and p.is_file())


def installed(package: str) -> Sources:
    """The package as this Python would import it; it is not imported."""
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
    return Sources([Path(folder) for folder in spec.submodule_search_locations], version)


@contextmanager
def downloaded(package: str, version: str = "") -> Iterator[Sources]:
    """The newest release, or this one, as pip finds it; without its dependencies, and never installed."""
    with TemporaryDirectory(prefix="stallwatch-verify-") as name:
        folder = Path(name)
        wanted = f"{package}=={version}" if version else package
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", name, wanted]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
        except subprocess.CalledProcessError as error:
            told = error.stderr.strip().splitlines() or ["no message"]
            raise SourceError(f"pip cannot download {wanted}: {told[-1]}") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"pip took longer than {DOWNLOAD_SECONDS} s to download {wanted}") from error
        (archive,) = folder.iterdir()
        unpacked = folder / "unpacked"
        _unpack(archive, unpacked)
        yield Sources([unpacked], version_of(archive.name))


def version_of(archive: str) -> str:
    """The version in the name of a wheel or a source archive."""
    stem = archive.removesuffix(".tar.gz").removesuffix(".zip")
    parts = stem.split("-")
    if archive.endswith(".whl"):
        return parts[1]
    return parts[-1] if len(parts) > 1 else ""


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)  # zipfile takes the dots out of the names
    else:
        with tarfile.open(archive) as packed_tar:
            packed_tar.extractall(folder, filter="data")
