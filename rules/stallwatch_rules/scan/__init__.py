"""One reader of large logs: which parts of a log are read, and what is only counted."""

from __future__ import annotations
