"""The whole way from a metric to a chat, with real servers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def stack(tmp_path: Path, root: Path) -> Iterator[Any]:
    """Prometheus, Alertmanager, relay and chat; none of them started yet but the chat."""
    yield from _stack(tmp_path, root)


@pytest.fixture
def script() -> Any:
    """An empty time script."""
    return timescript.Script()


@pytest.fixture
def standing() -> Any:
    """What counts how long the machine stands still, by moments that the test gives."""
    return timescript.Standing()


class Shared:
    """What comes of one play, for all tests of a file; what is tried again is tried on a play of its own."""

    def __init__(self, new_stack: Callable[[], AbstractContextManager[Any]]) -> None:
        self._new_stack = new_stack
        self._open = ExitStack()
        self._outcome: Any = None
        self._failure: Exception | None = None
        self._plays = 0

    def outcome(self, play: Callable[[Any, Any], Any], *, again: bool) -> Any:
        """What `play` makes of a new stack and an empty script, once, and once more where asked `again`."""
        if self._plays == 0 or (again and self._plays == 1):
            self.close()
            self._plays += 1
            self._outcome = self._failure = None
            try:
                self._outcome = play(self._open.enter_context(self._new_stack()), timescript.Script())
            except Exception as failure:
                self.close()
                self._failure = failure
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def close(self) -> None:
        """End the servers of the last play."""
        self._open.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Shared]:
    """Servers that the tests of a file have together."""
    made = Shared(lambda: contextmanager(_stack)(tmp_path_factory.mktemp("stack"), root))
    yield made
    made.close()
