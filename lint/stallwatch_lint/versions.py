"""Read package versions and find combinations of installed versions that are known to conflict.

The known conflicts are in `facts/versions.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stallwatch_lint.diagnostic import Diagnostic, Severity
from stallwatch_lint.dsconfig import AUTO
from stallwatch_lint.facts import facts
from stallwatch_rules.messages import Message, message
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_lint.run import Run

_PLAIN = lazy(r"(?P<name>[A-Za-z0-9][\w.-]*)\s+(?P<version>\d\S*)")  # a line of `pip list`


class VersionConflict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Packages that fail together in these version ranges. `facts/versions.yaml` explains the fields."""

    #: Version specifiers by canonical package name. Versions that satisfy all specifiers conflict.
    ranges: dict[str, str]
    severity: Severity
    fails: str
    why: str
    rule: str  #: rule page about the failure that the conflict causes
    source: str  #: package, versions, and files that show the conflict
    wanted: str = ""
    used: frozenset[str] = frozenset()
    stages: frozenset[int] = frozenset()
    auto_key: str | None = None

    @property
    def what(self) -> Message:
        """The message that describes what fails with these versions."""
        return message(f"lint.unfit-{self.fails}")


@cache
def version_conflicts() -> tuple[VersionConflict, ...]:
    """Return all known conflicts of package versions."""
    return facts("versions", tuple[VersionConflict, ...])


def conflicts_among(versions: Mapping[str, str]) -> list[VersionConflict]:
    """Return the known conflicts among these versions. The keys of `versions` are canonical package names."""
    return [
        entry
        for entry in version_conflicts()
        if all(fits(versions, package, specifier) for package, specifier in entry.ranges.items())
    ]


def check_versions(run: Run, source: str | None = None) -> Iterator[Diagnostic]:
    """Among the installed versions, yield the conflicts that affect this run.

    `source` is the file that contains the versions.
    """
    used = {name for script in run.scripts for name in script.names}
    zero = run.config.section("zero_optimization") if run.config is not None else {}
    for entry in conflicts_among(run.versions):
        if (
            (entry.stages and run.stage not in entry.stages)
            or (entry.used and entry.used.isdisjoint(used))
            or (entry.auto_key and zero.get(entry.auto_key) != AUTO)
        ):
            continue
        names = ", ".join(f"{package} {run.versions[package]}" for package in entry.ranges)
        yield Diagnostic(
            "versions-unfit",
            entry.severity,
            message("lint.versions-unfit-what", names=names, what=entry.what),
            message(f"lint.unfit-{entry.why}-why", wanted=entry.wanted),
            message(f"lint.unfit-{entry.why}-fix", wanted=entry.wanted),
            entry.rule,
            source,
        )


def version_of(versions: Mapping[str, str], package: str) -> Version | None:
    """Return the version of this package, or ``None`` if it is not installed or its version is invalid."""
    text = versions.get(canonicalize_name(package))
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def fits(versions: Mapping[str, str], package: str, specifier: str) -> bool:
    """Return whether the package is installed in a version within the range.

    A build such as ``2.6.0+cu124`` or the NVIDIA build ``2.6.0a0+df5bbc09d1.nv24.12`` counts as the release
    2.6.0.
    """
    version = version_of(versions, package)
    return version is not None and SpecifierSet(specifier).contains(Version(version.base_version))


def parse_versions(text: str) -> dict[str, str]:
    """Return the pinned versions in ``requirements.txt`` or in the output of ``pip freeze`` or ``pip list``.

    A requirement counts only if it pins one version (``==``), because a range does not determine the
    installed version.
    """
    versions: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.split(" #", 1)[0].split(";", 1)[0].strip()
        if listed := _PLAIN.fullmatch(line):
            versions[canonicalize_name(listed["name"])] = listed["version"]
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # the line is an option, a comment, or a URL
        pinned = [
            specifier.version for specifier in requirement.specifier if specifier.operator in ("==", "===")
        ]
        if pinned and "*" not in pinned[0]:
            versions[canonicalize_name(requirement.name)] = pinned[0]
    return versions
