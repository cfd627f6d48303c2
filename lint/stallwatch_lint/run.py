"""Define the facts about a planned run that all checks use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packaging.version import Version

from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.script import Script
from stallwatch_lint.signatures import Signatures
from stallwatch_lint.versions import fits, version_of


@dataclass(frozen=True)
class Run:
    """The configuration, scripts, and installed packages of a run."""

    config: DsConfig | None = None
    scripts: Sequence[Script] = ()
    versions: Mapping[str, str] = field(default_factory=dict)  #: versions by canonical package name
    world_size: int | None = None  #: number of data-parallel ranks
    signatures: Signatures | None = None  #: signatures of installed classes whose source can be read

    @property
    def stage(self) -> int | None:
        """The ZeRO stage of the run, or ``None`` if there is no configuration or the stage is unknown."""
        return self.config.stage if self.config is not None else None

    def version(self, package: str) -> Version | None:
        """Return the version of an installed package, or `None` if the version is unknown."""
        return version_of(self.versions, package)

    def fits(self, package: str, specifier: str) -> bool:
        """Return whether the package is known to be installed in a version within the range."""
        return fits(self.versions, package, specifier)
