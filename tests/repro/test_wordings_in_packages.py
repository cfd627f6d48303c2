"""Check that the installed packages still print the texts that the stable rules match.

If there is a network, the newest releases of missing packages are downloaded without their dependencies. If a
text is gone, the rule needs the new text as another pattern, or ``versions`` that end before it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from wording_search import claimed, missing, missing_of_installed
from wordings.files import SourceError
from wordings.packages import downloaded

INSTALLED = ("torch", "transformers", "deepspeed", "accelerate")
DOWNLOADED = {"peft": "", "trl": ""}  #: the only place for pins; empty for the newest release

pytestmark = pytest.mark.repro


Searched = dict[str, Future[tuple[str, list[str]]]]


@pytest.fixture(scope="module")
def searched(request: pytest.FixtureRequest) -> Iterator[Searched]:
    """Search the packages in parallel, the longest search first, and yield the results."""
    asked = {item.name for item in request.session.items}
    wanted = [
        package
        for package in INSTALLED
        if f"test_installed_packages_print_the_expected_texts[{package}]" in asked
    ]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield {package: pool.submit(missing_of_installed, package) for package in wanted}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("package", INSTALLED)
def test_installed_packages_print_the_expected_texts(package: str, searched: Searched) -> None:
    try:
        version, gone = searched[package].result()
    except SourceError as error:
        pytest.skip(str(error))
    assert version
    assert gone == []


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
