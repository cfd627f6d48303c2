"""Do the packages that are installed here still print what the stable rules look for?

The newest releases of what is not installed are downloaded without their dependencies, where there is a
network. A text that is gone needs the new wording as another pattern, or ``versions`` that end before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stallwatch.commands.rules_verify import look
from stallwatch.package_sources import downloaded, installed
from stallwatch.source_files import SourceError, Sources
from stallwatch_rules.authoring.wordings import same_package
from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import RulePage

INSTALLED = ("accelerate", "deepspeed", "torch", "transformers")
DOWNLOADED = {"peft": "", "trl": ""}  #: the one place for pins; empty: the newest release

pytestmark = pytest.mark.repro


def claimed(package: str) -> list[RulePage]:
    """The stable rules that name the package."""
    return [
        page
        for page in load_catalogue().pages.values()
        if page.status == "stable" and any(same_package(one.package, package) for one in page.emitted_by)
    ]


def missing(pages: Sequence[RulePage], package: str, sources: Sources) -> list[str]:
    return [f"{one.rule}: {one.pattern}" for one in look(pages, package, sources) if one.state == "missing"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", INSTALLED)
def test_installed(package: str) -> None:
    try:
        sources = installed(package)
    except SourceError as error:
        pytest.skip(str(error))
    assert sources.version
    assert missing(claimed(package), package, sources) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("package", "version"), DOWNLOADED.items())
def test_downloaded(package: str, version: str) -> None:
    pages = claimed(package)
    if not pages:
        pytest.skip(f"no stable rule names {package}")
    try:
        with downloaded(package, version) as sources:
            assert sources.version
            assert missing(pages, package, sources) == []
    except SourceError as error:
        pytest.skip(f"no network: {error}")
