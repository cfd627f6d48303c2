"""Read large logs: decide which parts of a log are read, and what is only counted."""

from __future__ import annotations
