"""The whole way from a metric to a chat, with real servers."""

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


Play = Callable[[Any, Any], Any]
HERE = Path(__file__).parent
ALONE = "test_prometheus_path.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that measure have no plays beside them; those that wait for a play come last, as it goes on
    beside the others."""
    ours = [place for place, item in enumerate(items) if HERE in item.path.parents]
    ordered = sorted(
        (items[place] for place in ours),
        key=lambda item: (item.path.name != ALONE, play_of(item) is not None),
    )
    for place, item in zip(ours, ordered, strict=True):
        items[place] = item


def play_of(item: pytest.Item) -> Play | None:
    """What a test waits for: the ``play`` of its file."""
    return item.module.play if "waited" in getattr(item, "fixturenames", ()) else None  # type: ignore[attr-defined]


class Beside:
    """Plays that are almost only waiting, two at a time in threads while other tests go on."""

    def __init__(self, new_stack: Callable[[], AbstractContextManager[Any]], plays: Iterable[Play]) -> None:
        self._new_stack = new_stack
        self._pool = ThreadPoolExecutor(2, "plays")
        self._begun: dict[Play, Future[Any]] = {}
        for play in dict.fromkeys(plays):
            self._begun[play] = self._pool.submit(self._played, play)

    def outcome(self, play: Play, *, again: bool) -> Any:
        """What came of it; with `again` of another one, played now."""
        return self._played(play) if again else self._begun[play].result()

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(cancel_futures=True)

    def _played(self, play: Play) -> Any:
        with self._new_stack() as made:
            return play(made, timescript.Script())


@pytest.fixture(autouse=True)
def plays_begin(request: pytest.FixtureRequest) -> None:
    """With the first test of this folder that need not be alone."""
    if request.path.name != ALONE:
        request.getfixturevalue("beside")


@pytest.fixture(scope="session")
def beside(
    request: pytest.FixtureRequest,
    isolated_session: None,
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
) -> Iterator[Beside]:
    """Begun when it is asked for first."""
    around = dict(os.environ)  # here: tests change it while the thread goes on
    wanted = [play for item in request.session.items if (play := play_of(item)) is not None]
    folders = iter([tmp_path_factory.mktemp("beside") for _ in range(2 * len(wanted))])  # in this thread
    made = Beside(lambda: contextmanager(_stack)(next(folders), root, around), wanted)
    yield made
    made.close()


@pytest.fixture
def waited(request: pytest.FixtureRequest, beside: Beside) -> Any:
    """What came of the file's ``play``; where the test is tried again (tests/conftest.py), of another one."""
    again = getattr(request.node, "execution_count", 1) > 1
    return beside.outcome(request.module.play, again=again)
