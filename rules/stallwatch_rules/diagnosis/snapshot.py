"""What a diagnosis is made from: the facts of a run, which nobody changes, and the assessment so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.endings import Crash, Left, MemoryKnown
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.messages import Text
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.progress.rhythm import RunClock
from stallwatch_rules.progress.timeline import Restart
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line

ENDING_KINDS = ("finished", "failed", "oom-killed", "killed", "time-limit", "interrupted", "unknown")


class Question(msgspec.Struct, frozen=True):
    """What the asker knows beside the log; see ``RunReading.diagnose``."""

    ending: str = ""  #: "<kind>: <sentence>", either part alone will do; kinds as in ``ENDING_KINDS``
    failed: bool | None = None
    now: float | None = None
    threshold: float | None = None
    stalled: bool = False
    left: tuple[Left, ...] = ()  #: ranks that ended by themselves before the others, by who watched them
    memory: MemoryKnown | None = None  #: of a run that ended: what was seen of its memory
    waited: float | None = None  #: seconds without a step at the end, by who watched it
    elsewhere: bool = False  #: as in ``RunFacts``
    crash: Crash | None = None  #: what failed although the command returned 0
    ended_at: float | None = None  #: when the command ended, by the clock of lines that a watcher stamped
    ending_text: Text = ""  #: the ending for reports

    @property
    def kind(self) -> str:
        """The kind of the ending, or nothing."""
        kind = self.ending.partition(":")[0].strip()
        return kind if kind in ENDING_KINDS else ""

    @property
    def told(self) -> str:
        """The ending for people: its sentence, or its kind where there is none."""
        return (self.ending.partition(":")[2].strip() or self.kind) if self.kind else self.ending


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
    restarts: Sequence[Restart]  #: of all its workers by their launcher


class LeftOut(NamedTuple):
    """A finding that is none of this run."""

    rule: str


class Ends(NamedTuple):
    """Rules of how a run was ended after it had stalled."""

    rules: frozenset[str]


#: What an assessor gives: a finding that is new or changed, or one of the other parts of an assessment.
Change = Found | LeftOut | Ends | Exceptions | RunFacts


class Assessment(msgspec.Struct, frozen=True):
    """What is known after some of the assessors."""

    found: Sequence[Found]
    exceptions: Exceptions
    facts: RunFacts
    ends: frozenset[str] = frozenset()  #: rules of how a run was ended after it had stalled

    @property
    def fatal(self) -> list[Found]:
        """The findings that ended the run."""
        return [one for one in self.found if one.harm == "fatal"]

    def get(self, rule: str) -> Found | None:
        """Return the finding of this rule."""
        return next((one for one in self.found if one.rule == rule), None)

    def harmful(self, rule: str) -> bool:
        """Return whether the rule fired, or was concluded, and does harm."""
        one = self.get(rule)
        return one is not None and one.harm != "harmless"

    def after(self, changes: Iterable[Change]) -> Assessment:
        """Return the assessment with these changes: findings keep their places, new ones come last."""
        found = {one.rule: one for one in self.found}
        exceptions, facts, ends = self.exceptions, self.facts, self.ends
        for change in changes:
            if isinstance(change, Found):
                found[change.rule] = change
            elif isinstance(change, LeftOut):
                del found[change.rule]
            elif isinstance(change, Ends):
                ends = change.rules
            elif isinstance(change, Exceptions):
                exceptions = change
            else:
                facts = change
        return Assessment(tuple(found.values()), exceptions, facts, ends)
