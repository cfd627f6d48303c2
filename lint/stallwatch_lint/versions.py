"""Versions that do not fit each other: which of the table's entries hold for what is installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.installed import fits
from stallwatch_lint.version_conflicts import TABLE, VersionConflict


def conflicts_among(versions: Mapping[str, str]) -> list[VersionConflict]:
    """The entries all of whose ranges hold.

    Args:
        versions: by canonical package name (``{"deepspeed": "0.16.4", "huggingface-hub": "1.0"}``).
    """
    return [
        entry
        for entry in TABLE
        if all(fits(versions, package, specifier) for package, specifier in entry.ranges.items())
    ]


def check_versions(
    versions: Mapping[str, str],
    *,
    stage: int | None = None,
    used: Collection[str] | None = None,
    auto_keys: Collection[str] = (),
    source: str | None = None,
) -> Iterator[Diagnostic]:
    """Remarks on versions, as far as they concern this run.

    Args:
        versions: as for ``conflicts_among``.
        stage: the ZeRO stage, where a configuration tells it.
        used: names that the scripts use; ``None`` where no script was given.
        auto_keys: keys of ``zero_optimization`` that are ``auto``.
        source: the file that the versions come from.
    """
    for entry in conflicts_among(versions):
        if entry.stages and stage not in entry.stages:
            continue
        if entry.used and not entry.used & set(used or ()):
            continue
        if entry.auto_key and entry.auto_key not in auto_keys:
            continue
        names = ", ".join(f"{package} {versions[package]}" for package in entry.ranges)
        yield Diagnostic(
            "versions-unfit",
            entry.severity,
            Words(
                f"{names} do not fit: {entry.what.params['en']}", f"{names} 不匹配：{entry.what.params['zh']}"
            ),
            entry.why,
            entry.fix,
            entry.rule,
            source,
        )
