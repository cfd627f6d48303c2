"""Three processes of tests side by side (``pytest -n 3``, as ``make test`` does it), which share out lanes.

Tests with browsers, those with trainings, and those of acceptance and of clusters, which almost only wait,
are a lane each. In it everything is as it is without lanes: one test after the other, in the same order and
in one process, which starts browser, servers and torch once. Every other file is a lane of its own. A process
that is done with its lane takes the next: the three long ones come first, then slow files, so that all
processes end at about the same time.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

FOLDERS = {"browser": "browser", "repro": "trainings", "acceptance": "acceptance", "cluster": "acceptance"}
#: They read files only.
APART = frozenset({"test_recordings.py", "test_scrub.py", "test_versions.py", "test_wordings_in_packages.py"})
#: Half a minute and more.
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
    """The lane of a test, by its id."""
    file = test.partition("::")[0]
    *folders, name = file.split("/")
    top = folders[folders.index("tests") + 1 :][:1] if "tests" in folders else folders[:1]
    return next((FOLDERS[one] for one in top if one in FOLDERS and name not in APART), file)


def turn(test: str) -> int:
    """Which lanes begin first: 0 those that take minutes, 1 slow files, 2 the others."""
    lane = lane_of(test)
    return 0 if lane in FOLDERS.values() else 1 if lane.endswith(SLOW_FILES) else 2


class Lanes(LoadScopeScheduling):
    """A process works off a lane, which pytest-xdist calls a scope."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)
