"""One Chromium and one scene for all tests, and a separate stage for a test that needs it.

Without Chromium, the tests are skipped with a message.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The modules are shared with screenshots.py, which is a separate program.
sys.path.insert(0, str(Path(__file__).parent))

try:
    import scene as scene_module
    import stage as stage_module
except ImportError:  # the test modules report the reason and skip themselves
    scene_module = stage_module = None  # type: ignore[assignment]

PATIENCE_MS = 120_000  #: timeout of a test's waits, on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder with a long timeout, because pages are slow under load."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def browser():  # type: ignore[no-untyped-def]
    """Yield Chromium, started once."""
    if stage_module.CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE_MS)
    with stage_module.chromium() as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[object]:
    """Yield a state folder in which the test starts a dashboard and runs."""
    made = stage_module.Stage(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture(scope="session")
def scene(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:  # type: ignore[no-untyped-def]
    """Yield runs that hang, train and failed, with the embedded store and a real Prometheus; started once."""
    if scene_module.PROMETHEUS is None:
        pytest.skip("no prometheus on this machine: apt-get install prometheus")
    made = scene_module.Scene(tmp_path_factory.mktemp("scene"))
    yield made
    made.close()


class Watched:
    """A page that records its requests, its console messages, and whether a script opened a dialog."""

    def __init__(self, page) -> None:  # type: ignore[no-untyped-def]
        self.page = page
        self.hosts: set[str] = set()
        self.failures: list[str] = []
        self.dialogs: list[str] = []
        page.on("request", lambda request: self.hosts.add(request.url.partition("://")[2].partition("/")[0]))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def outside(self, address: str) -> set[str]:
        """Return the requested hosts other than the dashboard."""
        return {host for host in self.hosts if host and host != address.partition("://")[2]}


@pytest.fixture(scope="session")
def reader(browser):  # type: ignore[no-untyped-def]
    """Yield a browser with a filled cache, so that all tests fetch the pages' files once."""
    context = _context(browser)
    yield context
    context.close()


@pytest.fixture
def watched(reader) -> Iterator[Watched]:  # type: ignore[no-untyped-def]
    """Yield a new page in the size of the documentation's pictures."""
    page = reader.new_page()
    yield Watched(page)
    page.close()
    reader.clear_cookies(name="stallwatch_language")  # the choice of one test is not that of the next


@pytest.fixture
def newcomer(browser) -> Iterator[Watched]:  # type: ignore[no-untyped-def]
    """Yield a page of a browser without cookies."""
    context = _context(browser)
    yield Watched(context.new_page())
    context.close()


def _context(browser):  # type: ignore[no-untyped-def]
    context = browser.new_context(viewport=stage_module.SIZE, accept_downloads=True)
    context.set_default_timeout(PATIENCE_MS)
    return context
