"""Trainings with a probe, for all tests beside this file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ranks import Ranks, Trained, Trainings  # the module is beside this file


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Return a runner of this test's programs, as one rank."""
    return Ranks(tmp_path)


@pytest.fixture(scope="module")
def trainings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trainings]:
    """Yield the runner of the programs that this module's selected tests need."""
    wanted = [
        item.callspec.params["trained"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and "trained" in getattr(getattr(item, "callspec", None), "params", {})
        and not any(any((*mark.args, mark.kwargs.get("condition"))) for mark in item.iter_markers("skipif"))
    ]
    found = Trainings(tmp_path_factory.mktemp("trainings"), wanted)
    yield found
    found.close()


@pytest.fixture
def trained(request: pytest.FixtureRequest, trainings: Trainings) -> list[Trained]:
    """Return the outcomes of the programs in the test's ``trains`` mark; a rerun test runs them again."""
    if getattr(request.node, "execution_count", 1) > 1:  # see tests/conftest.py
        trainings.again(request.param)
    return [trainings.outcome(program) for program in request.param]
