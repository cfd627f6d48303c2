"""A diagnosis for people and programs: a terminal, an issue tracker, JSON."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwatch_rules.report.json import to_json
    from stallwatch_rules.report.markdown import to_markdown
    from stallwatch_rules.report.terminal import print_report

__all__ = ["print_report", "to_json", "to_markdown"]

_MODULES = {"print_report": "terminal", "to_json": "json", "to_markdown": "markdown"}


def __getattr__(name: str) -> Any:
    """Import a format when it is asked for: a run that is well prints none, and rich alone takes long."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
