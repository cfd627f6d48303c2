"""Two lanes of tests side by side (``pytest -n 2``, as ``make test`` does it), each a process of its own.

In one lane are the folders whose tests wait for trainings, browsers and servers, and keep all processors busy
between; the others are in the second. Within a lane all goes on as it does without lanes: one test after the
other, in the same order and in one process, so that no two tests with a browser or with trainings meet.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

WAITING = frozenset({"acceptance", "browser", "repro"})


def lane_of(test: str) -> str:
    """The lane of a test, by its id."""
    folders = test.partition("::")[0].split("/")[:-1]
    return "waiting" if WAITING.intersection(folders) else "computing"


class Lanes(LoadScopeScheduling):
    """A process works off a lane; what pytest-xdist calls a scope."""

    def _split_scope(self, nodeid: str) -> str:
        return lane_of(nodeid)
