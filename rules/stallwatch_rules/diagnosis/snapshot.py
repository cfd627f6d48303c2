"""What a diagnosis is made from: the facts of a run, which nobody changes, and the assessment so far."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.verdict import Question
from stallwatch_rules.endings import Left
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.rhythm import RunClock
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line


class Snapshot(msgspec.Struct, frozen=True):
    """What was read of a run, and what is known beside it."""

    streams: Streams
    tracker: ProgressTracker
    catalogue: Catalogue
    question: Question
    clock: RunClock
    died: bool  #: its exit code or its launcher says that it failed
    by_hand: bool  #: somebody stopped it
    left: tuple[Left, ...]  #: ranks that ended by themselves, without an error, before the others
    left_line: Line | None  #: where the log says so


class Assessment(msgspec.Struct):
    """What is known after some of the assessors."""

    found: list[Found]
    exceptions: Exceptions
    facts: RunFacts
    ends: set[str] = set()  #: rules of how a run was ended after it had stalled

    def copy(self) -> Assessment:
        """Return one whose findings and exceptions may be changed."""
        return Assessment(
            [
                replace(
                    one,
                    hits=dict(one.hits),
                    explains=list(one.explains),
                    facts=set(one.facts),
                    proof=list(one.proof),
                )
                for one in self.found
            ],
            replace(self.exceptions, unknown=[replace(one) for one in self.exceptions.unknown]),
            self.facts,
            set(self.ends),
        )

    def fatal(self) -> Sequence[Found]:
        """Return the findings that ended the run."""
        return [one for one in self.found if one.harm == "fatal"]
