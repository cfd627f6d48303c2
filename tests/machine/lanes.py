"""Three processes of tests side by side (``pytest -n 3``, as ``make test`` does it), which share out lanes.

Tests with trainings and browsers wait, and keep all processors busy between: they are one lane, in which all
goes on as it does without lanes, one test after the other, in the same order and in one process. The tests of
acceptance and of clusters, which almost only wait, are another. Every other file is a lane of its own. A
process that is done with its lane takes the next, so that all of them end at about the same time.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

FOLDERS = {"browser": "machine", "repro": "machine", "acceptance": "acceptance", "cluster": "acceptance"}
#: They read files only.
APART = frozenset({"test_versions.py", "test_wordings_in_packages.py"})


def lane_of(test: str) -> str:
    """The lane of a test, by its id."""
    file = test.partition("::")[0]
    *folders, name = file.split("/")
    top = folders[folders.index("tests") + 1 :][:1] if "tests" in folders else folders[:1]
    return next((FOLDERS[one] for one in top if one in FOLDERS and name not in APART), file)


def is_long(test: str) -> bool:
    """Whether its lane takes minutes; the longest lanes are to begin first."""
    return lane_of(test) in FOLDERS.values()


class Lanes(LoadScopeScheduling):
    """A process works off a lane, which pytest-xdist calls a scope."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says little of their time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)
