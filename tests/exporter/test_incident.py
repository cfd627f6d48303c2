"""Facts of an incident, and the optional methods of its receivers."""

from __future__ import annotations

import ast
from pathlib import Path

from stallwatch_exporter.incident import optional_methods

ROOT = Path(__file__).resolve().parents[2]


class Watchful:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def alive(self, problem: str) -> None:
        self.problems.append(problem)


def test_only_receivers_that_have_a_method_are_called() -> None:
    sink, watchful = [].append, Watchful()
    for alive in optional_methods((sink, watchful), "alive"):
        alive("late")
    assert watchful.problems == ["late"] and optional_methods((sink, None), "edit") == []


def test_optional_methods_are_looked_up_in_one_place() -> None:
    """Every other lookup of such a method by its name would be a second spelling."""
    names = {"alive", "adopt", "release", "escalates", "has_sent", "edit", "has_message"}
    found = []
    for package in ("exporter/stallwatch_exporter", "alerts/stallwatch_alerts", "stallwatch"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                    named = node.args[1]
                    if isinstance(named, ast.Constant) and named.value in names:
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
