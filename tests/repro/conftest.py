"""Fixtures of the reproductions, whose programs are beside these tests and import each other as scripts do.

A run of real ranks takes ten seconds, so several tests share one run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from launching import SERVERS, Probed, Watched, forks, probed

from stallwatch_rules.pages.catalogue import Catalogue


@pytest.fixture(scope="package", autouse=True)
def forks_end() -> Iterator[None]:
    """Keep the process from which launches are forked until the last launch has ended."""
    yield
    forks.cache_clear()
    while SERVERS:
        SERVERS.pop().close()


@pytest.fixture(scope="session")
def probed_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Probed]:
    """Return a function that runs two ranks of a program with a probe, once for each set of options."""

    @functools.cache
    def run(program: str, *options: str) -> Probed:
        return probed(tmp_path_factory.mktemp("probed"), program, *options)

    return run


@pytest.fixture(scope="session")
def hidden_run(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> Callable[..., Watched]:
    """Return the same function with an agent in front, which cannot read the ranks' output."""

    @functools.cache
    def run(program: str, *options: str) -> Watched:
        watched = Watched(tmp_path_factory.mktemp("hidden") / "home", catalogue)
        watched.run(program, *options, ranks=2, hidden=True)
        return watched

    return run
