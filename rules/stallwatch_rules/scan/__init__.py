"""Read large logs: decide which parts of a log are parsed, and which lines are only counted."""

from __future__ import annotations
