"""Provide the names from release 0.1 for one more minor version."""

from __future__ import annotations

from typing import Any

from stallwatch_rules.changed_names import moved_attribute


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, name)
