"""One thing that a check has to say, in both languages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

#: ``fails``: it cannot go well; ``likely``: it goes wrong in the usual case; ``advice``: worth knowing.
Severity = Literal["fails", "likely", "advice"]
_ORDER: dict[Severity, int] = {"fails": 0, "likely": 1, "advice": 2}


class Words(NamedTuple):
    """A text in English and Chinese."""

    en: str
    zh: str

    def text(self, language: str = "en") -> str:
        """English for any language that is not Chinese."""
        return self.zh if language.startswith("zh") else self.en


class Diagnostic(msgspec.Struct, frozen=True):
    """What is wrong, where, why, and what to change."""

    check: str  #: the check's own name, kebab-case: stable, for programs
    severity: Severity
    what: Words
    why: Words
    fix: Words
    rule: str | None = None  #: the page of the catalogue that describes the failure
    file: str | None = None
    line: int | None = None  #: counted from 1

    def at(self, file: str | None, line: int | None = None) -> Diagnostic:
        """The same, at this place."""
        return replace(self, file=file, line=line)


def ordered(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The gravest first; equal ones once, in the order of their places."""
    unique = dict.fromkeys(diagnostics)
    return sorted(unique, key=lambda one: (_ORDER[one.severity], one.file or "", one.line or 0))
