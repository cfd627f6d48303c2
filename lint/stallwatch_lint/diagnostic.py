"""Build the result of a check.

The severity and the rule page of a diagnostic are in `facts/checks.yaml`, and its text is in the locale.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

import msgspec

from stallwatch_lint.facts import facts
from stallwatch_rules.messages import Message, message

#: ``fails``: the run is certain to fail; ``likely``: the run usually fails; ``advice``: a useful fact.
Severity = Literal["fails", "likely", "advice"]
Place = tuple[str | None, int | None]  #: a file, and a line number in the file, counted from 1
_ORDER: dict[Severity, int] = {"fails": 0, "likely": 1, "advice": 2}


class Diagnostic(msgspec.Struct, frozen=True):
    """A problem that a check found: what is wrong, where, why, and what to change."""

    check: str  #: stable kebab-case name of the check, for programs
    severity: Severity
    what: Message
    why: Message
    fix: Message
    rule: str | None = None  #: the rule page that describes the failure
    file: str | None = None
    line: int | None = None  #: line number, counted from 1


class _Kind(msgspec.Struct, frozen=True):
    severity: Severity
    rule: str | None = None
    check: str | None = None


@cache
def _kinds() -> dict[str, _Kind]:
    return facts("checks", dict[str, _Kind])


def diagnostic(
    kind: str,
    place: Place,
    *,
    severity: Severity | None = None,
    fix: Message | None = None,
    **params: str | int | float | Message,
) -> Diagnostic:
    """Return a diagnostic of a kind that `facts/checks.yaml` lists, with the parameters for its text."""
    known = _kinds()[kind]
    file, line = place
    return Diagnostic(
        known.check or kind,
        severity or known.severity,
        message(f"lint.{kind}-what", **params),
        message(f"lint.{kind}-why", **params),
        fix or message(f"lint.{kind}-fix", **params),
        known.rule,
        file,
        line,
    )


def ordered(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the distinct diagnostics, sorted by severity (most severe first) and location."""
    unique = {msgspec.json.encode(found): found for found in diagnostics}
    return sorted(
        unique.values(), key=lambda found: (_ORDER[found.severity], found.file or "", found.line or 0)
    )
