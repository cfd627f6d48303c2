"""Define the inputs for the assessors: the facts of a run, which never change, and the assessment so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import RuleFinding, Streams
from stallwatch_rules.diagnosis.hosts import RunHosts
from stallwatch_rules.endings import Crash, Ending, ExitedRank, MemoryUse
from stallwatch_rules.judgements.facts import RunFacts
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.progress.rhythm import RunClock
from stallwatch_rules.progress.timeline import Restart
from stallwatch_rules.progress.tracker import ProgressTracker
from stallwatch_rules.records import Line


class RunContext(msgspec.Struct, frozen=True):
    """The facts about a run that its log does not contain (see ``RunReading.diagnose``)."""

    ending: Ending | None = None
    now: float | None = None
    threshold: float | None = None
    stalled: bool = False
    waited: float | None = None
    ended_at: float | None = None
    memory: MemoryUse | None = None
    left: Sequence[ExitedRank] = ()
    elsewhere: Sequence[int] = ()  #: awaited ranks whose stacks are outside all collectives
    watched: bool = False
    alike: Mapping[str, Sequence[int]] = {}  #: source → ranks of unread sources that print the same lines
    silent: Collection[int] = ()  #: ranks with empty logs
    sources: Mapping[str, str] = {}  #: source → host in the source's name
    ranks_on: Mapping[int, str] = {}  #: rank → host, including sources that were not read
    #: The program that failed, if another program of the run continues and the run has not ended.
    failed_program: Crash | None = None

    @property
    def kind(self) -> str:
        """The kind of the run's ending, or an empty string if the ending is unknown."""
        return self.ending.kind if self.ending is not None else ""

    @property
    def failed(self) -> bool | None:
        """True if the run failed, False if it succeeded, or ``None`` if the ending does not show this."""
        return self.ending.failed if self.ending is not None else None

    @property
    def stopped(self) -> bool:
        """True if the run is known to have been stopped from outside."""
        return self.ending is not None and self.ending.stopped

    @property
    def crash(self) -> Crash | None:
        """The process, if any, that failed although the command returned 0 or continues."""
        return self.ending.crash if self.ending is not None else self.failed_program


class Snapshot(msgspec.Struct, frozen=True):
    """The immutable facts of a run: the streams that were read, and the context of the run."""

    streams: Streams
    tracker: ProgressTracker
    catalogue: Catalogue
    context: RunContext
    clock: RunClock
    died: bool  #: True if the exit code or the launcher shows that the run failed
    by_hand: bool  #: True if a user stopped the run
    left: tuple[ExitedRank, ...]  #: ranks that ended by themselves, without an error, before the other ranks
    left_line: Line | None  #: the log line that shows that the ranks in ``left`` ended
    restarts: Sequence[Restart]  #: the launcher's restarts of all workers of the run
    hosts: RunHosts

    @property
    def last_steps(self) -> dict[int | None, int]:
        """The last step of each rank.

        A rank whose log was not read has the last step of the rank whose log contains the same lines.
        """
        known, alike = self.tracker.steps, self.context.alike
        others: dict[int | None, int] = {
            other: known[rank]
            for source, rank in self.streams
            if source in alike and rank in known
            for other in alike[source]
        }
        return {**others, **known}


class RemovedFinding(NamedTuple):
    """A change that removes the finding of a rule, because the finding does not belong to this run."""

    rule: str


class StallEnds(NamedTuple):
    """A change that records which rules show how a stalled run was ended."""

    rules: frozenset[str]


#: The output of an assessor: a new or changed finding, or another part of an assessment.
Change = RuleFinding | RemovedFinding | StallEnds | Exceptions | RunFacts


class Assessment(msgspec.Struct, frozen=True):
    """The findings, exceptions, and facts of a run, as passed from one assessor to the next."""

    found: Sequence[RuleFinding]
    exceptions: Exceptions
    facts: RunFacts
    ends: frozenset[str] = frozenset()  #: rules that show how a stalled run was ended

    @property
    def fatal(self) -> list[RuleFinding]:
        """The findings whose harm is fatal, which means that they ended the run."""
        return [finding for finding in self.found if finding.harm == "fatal"]

    def get(self, rule: str) -> RuleFinding | None:
        """Return the finding of this rule, or ``None`` if there is none."""
        return next((finding for finding in self.found if finding.rule == rule), None)

    def tagged(self, tag: Tag) -> RuleFinding | None:
        """Return the first finding of a rule with this tag, or ``None`` if there is none."""
        return next((finding for finding in self.found if finding.tagged(tag)), None)

    def harmful(self, rule: str) -> bool:
        """Return whether the rule has a finding that is not harmless."""
        finding = self.get(rule)
        return finding is not None and finding.harm != "harmless"

    def after(self, changes: Iterable[Change]) -> Assessment:
        """Return the assessment with these changes. Changed findings keep their positions.

        New findings come last.
        """
        found = {finding.rule: finding for finding in self.found}
        exceptions, facts, ends = self.exceptions, self.facts, self.ends
        for change in changes:
            if isinstance(change, RuleFinding):
                found[change.rule] = change
            elif isinstance(change, RemovedFinding):
                del found[change.rule]
            elif isinstance(change, StallEnds):
                ends = change.rules
            elif isinstance(change, Exceptions):
                exceptions = change
            else:
                facts = change
        return Assessment(tuple(found.values()), exceptions, facts, ends)
