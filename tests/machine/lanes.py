"""Three test processes in parallel (``pytest -n 3``, as in ``make test``), which share out lanes.

Tests with browsers are one lane, tests with trainings another, and the tests of acceptance and clusters,
which mostly wait, a third. Within a lane, everything is as without lanes: one test after the other, in the
same order and in one process, which starts browser, servers and torch once. Every other file is a lane of its
own. A process that has finished its lane takes the next: the three long lanes come first, then slow files, so
that all processes end at about the same time.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

FOLDERS = {"browser": "browser", "repro": "trainings", "acceptance": "acceptance", "cluster": "acceptance"}
#: These files only read files.
APART = frozenset({"test_recordings.py", "test_scrub.py", "test_versions.py", "test_wordings_in_packages.py"})
#: Files that take half a minute or more.
SLOW_FILES = (
    "bench/test_faults.py",
    "bench/test_live.py",
    "cli/test_demo.py",
    "documentation/test_doc_commands.py",
    "exporter/test_wall_clock.py",
    "exporter/test_end_evidence.py",
    "repro/test_wordings_in_packages.py",
    "security/test_wrong_in_0_1.py",
)


def lane_of(test: str) -> str:
    """Return the lane of a test by its id."""
    file = test.partition("::")[0]
    *folders, name = file.split("/")
    top = folders[folders.index("tests") + 1 :][:1] if "tests" in folders else folders[:1]
    return next((FOLDERS[item] for item in top if item in FOLDERS and name not in APART), file)


def turn(test: str) -> int:
    """Return the order of a test's lane: 0 for lanes of minutes, 1 for slow files, 2 for the others."""
    lane = lane_of(test)
    return 0 if lane in FOLDERS.values() else 1 if lane.endswith(SLOW_FILES) else 2


class Lanes(LoadScopeScheduling):
    """Scheduler in which each process runs whole lanes, which pytest-xdist calls scopes."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False  # the number of tests in a lane says little about its time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)
