"""Read large logs. Only the informative parts of a log are parsed. The other lines are only counted."""

from __future__ import annotations
