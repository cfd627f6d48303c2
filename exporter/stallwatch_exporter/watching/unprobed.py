"""A training whose steps are in the log while no rank has a probe: said once, as much less is seen of it."""

from __future__ import annotations

from collections.abc import Callable

NO_PROBE = (
    "no rank has a probe: only the log of this run is watched. No process that the command started here"
    " imports torch with the probe in it (python -E, -I or -S, an environment of its own as under sudo or in"
    " a container, ranks on other hosts)"
)
WAIT_SECONDS = 15.0  #: from the first step in the log; a rank's ring is there before its first step


class Unprobed:
    """Hand it at every look whether there was a ring, and whether the log told of steps."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice = notice
        self._since: float | None = None
        self._over = False

    def look(self, now: float, *, probed: bool, steps: bool) -> None:
        """Say it where it is so for long enough; with the first ring it never will be."""
        if self._over or not (probed or steps):
            return
        self._over = probed
        if self._since is None or now < self._since:  # or the clock was set back
            self._since = now
        if not self._over and now - self._since >= WAIT_SECONDS:
            self._over = True
            self._notice(NO_PROBE)
