"""The reproductions are programs beside these tests, and find each other the way a script does.

A run of real ranks takes ten seconds, so what several tests ask of the same run is asked of one.
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
    """What the launches of these tests are forked from is there until the last of them is done."""
    yield
    forks.cache_clear()
    while SERVERS:
        SERVERS.pop().close()


@pytest.fixture(scope="session")
def probed_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Probed]:
    """Two ranks of a program with a probe: run when it is first asked for, with these options."""

    @functools.cache
    def run(program: str, *options: str) -> Probed:
        return probed(tmp_path_factory.mktemp("probed"), program, *options)

    return run


@pytest.fixture(scope="session")
def hidden_run(tmp_path_factory: pytest.TempPathFactory, catalogue: Catalogue) -> Callable[..., Watched]:
    """The same in front of an agent, which sees nothing of what the ranks print."""

    @functools.cache
    def run(program: str, *options: str) -> Watched:
        watched = Watched(tmp_path_factory.mktemp("hidden") / "home", catalogue)
        watched.run(program, *options, ranks=2, hidden=True)
        return watched

    return run
