"""Versions of packages: what is installed, or declared in a file."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stallwatch_rules.text.lazy import lazy

_PLAIN = lazy(r"(?P<name>[A-Za-z0-9][\w.-]*)\s+(?P<version>\d\S*)")  # `pip list`


def version_of(versions: Mapping[str, str], package: str) -> Version | None:
    """The version of this package; ``None`` where it is not there or no version."""
    text = versions.get(canonicalize_name(package))
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def fits(versions: Mapping[str, str], package: str, specifier: str) -> bool:
    """Whether the package is there in a version within the range.

    Builds such as ``2.6.0+cu124`` and NVIDIA's ``2.6.0a0+df5bbc09d1.nv24.12`` count as that release.
    """
    version = version_of(versions, package)
    if version is None:
        return False
    return SpecifierSet(specifier).contains(Version(version.base_version))


def parse_versions(text: str) -> dict[str, str]:
    """The pinned versions in the output of ``pip freeze`` or ``pip list``, or in a ``requirements.txt``.

    A requirement counts only where it pins one version (``==``): a range does not tell what gets installed.
    """
    versions: dict[str, str] = {}
    for raw in text.splitlines():
        line = raw.split(" #", 1)[0].split(";", 1)[0].strip()
        listed = _PLAIN.fullmatch(line)
        if listed:
            versions[canonicalize_name(listed["name"])] = listed["version"]
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # options, comments, addresses
        pinned = [one.version for one in requirement.specifier if one.operator in ("==", "===")]
        if pinned and "*" not in pinned[0]:
            versions[canonicalize_name(requirement.name)] = pinned[0]
    return versions
