"""Read large logs. Only informative parts of a log are parsed; the other lines are only counted."""

from __future__ import annotations
