"""The optional members of the sinks of incidents."""

from __future__ import annotations

import re
from pathlib import Path

from stallwatch_exporter.incident import optional_methods

ROOT = Path(__file__).resolve().parents[2]


class Watchful:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def alive(self, problem: str) -> None:
        self.problems.append(problem)


def test_only_sinks_with_the_method_are_called() -> None:
    sink, watchful = [].append, Watchful()
    for alive in optional_methods((sink, watchful), "alive"):
        alive("late")
    assert watchful.problems == ["late"]


def test_optional_members_of_a_sink_are_documented() -> None:
    used = set()
    for package in ("exporter/stallwatch_exporter", "stallwatch"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            used |= set(re.findall(r"(?:_each_sink\(|sinks, |attr\(sink, )\"(\w+)\"", source))
    assert used == {"alive", "adopt", "release", "escalates", "has_sent", "is_shared"}
    documented = (ROOT / "exporter/stallwatch_exporter/incident.py").read_text(encoding="utf-8")
    after = documented.partition("\nSink = ")[2].partition("\ndef ")[0]
    assert set(re.findall(r"^\* ``(\w+)", after, re.MULTILINE)) == used
