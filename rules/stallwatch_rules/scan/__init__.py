"""Read large logs: decide which parts of a log are read, and which lines are only counted."""

from __future__ import annotations
