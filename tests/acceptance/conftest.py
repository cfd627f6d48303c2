"""The whole way from a metric to a chat, with real servers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _neighbour(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    found = importlib.util.spec_from_file_location(
        f"acceptance_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


servers = _neighbour("servers")
timescript = _neighbour("timescript")


def _stack(folder: Path, root: Path) -> Iterator[Any]:
    missing = servers.missing()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: prometheus, prometheus-alertmanager)")
    made = servers.Stack(folder, root)
    yield made
    made.close()


@pytest.fixture
def stack(tmp_path: Path, root: Path) -> Iterator[Any]:
    """Prometheus, Alertmanager, relay and chat; none of them started yet but the chat."""
    yield from _stack(tmp_path, root)


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Any]:
    """The same, for all tests of a file."""
    yield from _stack(tmp_path_factory.mktemp("stack"), root)


@pytest.fixture
def script() -> Any:
    """An empty time script."""
    return timescript.Script()


@pytest.fixture(scope="module")
def shared_script() -> Any:
    """One for all tests of a file."""
    return timescript.Script()
