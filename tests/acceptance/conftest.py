"""Acceptance tests of the path from a metric to a chat, with real servers."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _neighbour(name: str) -> ModuleType:
    """Import a module of this folder, which is not a package."""
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


def _stack(folder: Path, root: Path, around: Mapping[str, str] | None = None) -> Iterator[Any]:
    missing = servers.missing()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: prometheus, prometheus-alertmanager)")
    made = servers.Stack(folder, root, dict(os.environ) if around is None else dict(around))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def stack(tmp_path: Path, root: Path) -> Iterator[Any]:
    """Yield a stack of Prometheus, Alertmanager, relay and chat; only the chat runs."""
    yield from _stack(tmp_path, root)


@pytest.fixture
def script() -> Any:
    """Return an empty time script."""
    return timescript.Script()


@pytest.fixture
def pauses() -> Any:
    """Return a counter of the machine's pauses, at times that the test gives."""
    return timescript.Pauses()


class Shared:
    """Result of one play, shared by all tests of a file; a rerun test gets a play of its own."""

    def __init__(self, new_stack: Callable[[], AbstractContextManager[Any]]) -> None:
        self._new_stack = new_stack
        self._open = ExitStack()
        self._outcome: Any = None
        self._failure: Exception | None = None
        self._plays = 0

    def outcome(self, play: Callable[[Any, Any], Any], *, again: bool) -> Any:
        """Return the result of `play` on a new stack with an empty script; `again` allows a second play."""
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
        """Stop the servers of the last play."""
        self._open.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Shared]:
    """Yield servers that all tests of a file share."""
    made = Shared(lambda: contextmanager(_stack)(tmp_path_factory.mktemp("stack"), root))
    yield made
    made.close()


Play = Callable[[Any, Any], Any]
HERE = Path(__file__).parent
ALONE = "test_prometheus_path.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that measure first, without plays beside them, and tests that wait for a play last."""
    ours = [place for place, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted(
        (items[place] for place in ours),
        key=lambda item: (item.path.name != ALONE, play_of(item) is not None),
    )
    for place, item in zip(ours, ordered, strict=True):
        items[place] = item


def play_of(item: pytest.Item) -> Play | None:
    """Return the ``play`` of a test's file if the test waits for its result."""
    return item.module.play if "waited" in getattr(item, "fixturenames", ()) else None  # type: ignore[attr-defined]


class Beside:
    """Plays that mostly wait, run two at a time in threads while other tests run."""

    def __init__(self, new_stack: Callable[[], AbstractContextManager[Any]], plays: Iterable[Play]) -> None:
        self._new_stack = new_stack
        self._pool = ThreadPoolExecutor(2, "plays")
        self._begun: dict[Play, Future[Any]] = {}
        for play in dict.fromkeys(plays):
            self._begun[play] = self._pool.submit(self._played, play)

    def outcome(self, play: Play, *, again: bool) -> Any:
        """Return the result of a play; with `again`, of a new play."""
        return self._played(play) if again else self._begun[play].result()

    def close(self) -> None:
        """Start no further plays."""
        self._pool.shutdown(cancel_futures=True)

    def _played(self, play: Play) -> Any:
        with self._new_stack() as made:
            return play(made, timescript.Script())


@pytest.fixture(autouse=True)
def plays_begin(request: pytest.FixtureRequest) -> None:
    """Start the plays with the first test of this folder that need not run alone."""
    if request.path.name != ALONE:
        request.getfixturevalue("beside")


@pytest.fixture(scope="session")
def beside(
    request: pytest.FixtureRequest,
    isolated_session: None,
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
) -> Iterator[Beside]:
    """Start the plays at the first use of this fixture."""
    around = dict(os.environ)  # copied now, because tests change the environment while the threads run
    wanted = [play for item in request.session.items if (play := play_of(item)) is not None]
    # created in this thread
    folders = iter([tmp_path_factory.mktemp("beside") for _ in range(2 * len(wanted))])
    made = Beside(lambda: contextmanager(_stack)(next(folders), root, around), wanted)
    yield made
    made.close()


@pytest.fixture
def waited(request: pytest.FixtureRequest, beside: Beside) -> Any:
    """Return the result of the file's ``play``; a rerun test (tests/conftest.py) gets a new play."""
    again = getattr(request.node, "execution_count", 1) > 1
    return beside.outcome(request.module.play, again=again)
