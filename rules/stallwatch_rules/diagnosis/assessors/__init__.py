"""List the assessors of a diagnosis in one table and run them.

An assessor is a pure function of the snapshot and the assessment so far. It returns new or changed
findings. ``stallwatch diagnose --explain`` shows the changes that each assessor made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import asdict

from stallwatch_rules.diagnosis.assessors.aftermath import abort_at_exit, aftermath, first_failure
from stallwatch_rules.diagnosis.assessors.conclusions import conclusions, explanations
from stallwatch_rules.diagnosis.assessors.endings import (
    distance,
    end,
    graceful_shutdown,
    known_ending,
    signals,
    stall_ends,
    terminations,
)
from stallwatch_rules.diagnosis.assessors.kills import kills, memory
from stallwatch_rules.diagnosis.assessors.progress import concerns, progress
from stallwatch_rules.diagnosis.assessors.recoveries import (
    excuses,
    failed_starts,
    handled_exceptions,
    raised,
    recoveries,
    teardown,
)
from stallwatch_rules.diagnosis.findings import RuleFinding
from stallwatch_rules.diagnosis.snapshot import Assessment, Change, Snapshot
from stallwatch_rules.records import Contribution, FindingChange, Noted

Assess = Callable[[Snapshot, Assessment], Iterable[Change]]


class Assessor(NamedTuple):
    """A row in the table of assessors."""

    name: str
    after: tuple[str, ...]  #: the assessors whose results this assessor uses
    assess: Assess


#: The assessors, in the order in which they run.
ASSESSORS: tuple[Assessor, ...] = (
    Assessor("recoveries", (), recoveries),
    Assessor("raised", ("recoveries",), raised),
    Assessor("excuses", ("raised",), excuses),
    Assessor("concerns", ("excuses",), concerns),
    Assessor("known-ending", (), known_ending),
    Assessor("handled-exceptions", ("excuses", "known-ending"), handled_exceptions),
    Assessor("teardown", ("excuses", "handled-exceptions"), teardown),
    Assessor("failed-starts", ("handled-exceptions", "teardown"), failed_starts),
    Assessor("end", ("excuses", "handled-exceptions", "failed-starts"), end),
    Assessor("progress", ("end",), progress),
    Assessor("conclusions", ("end", "progress"), conclusions),
    Assessor("stall-ends", ("conclusions",), stall_ends),
    Assessor("signals", ("conclusions", "stall-ends"), signals),
    Assessor("terminations", ("signals",), terminations),
    Assessor("kills", ("signals",), kills),
    Assessor("memory", ("kills",), memory),
    Assessor("aftermath", ("memory",), aftermath),
    Assessor("first-failure", ("aftermath",), first_failure),
    Assessor("abort-at-exit", ("first-failure",), abort_at_exit),
    Assessor("graceful-shutdown", ("abort-at-exit",), graceful_shutdown),
    Assessor("distance", ("graceful-shutdown",), distance),
    Assessor("explanations", ("end", "conclusions", "graceful-shutdown"), explanations),
)


def assess(
    run: Snapshot, first: Assessment, assessors: Sequence[Assessor] = ASSESSORS
) -> tuple[Assessment, list[Contribution]]:
    """Run the assessors in order. Return the final assessment and the changes that each assessor made."""
    contributions = [Contribution("matches", changes_of([], first.found))]
    now = first
    for assessor in assessors:
        after = now.after(assessor.assess(run, now))
        changes, noted = changes_of(now.found, after.found), noted_in(now, after)
        if changes or noted:
            contributions.append(Contribution(assessor.name, changes, noted))
        now = after
    return now, contributions


def changes_of(before: Sequence[RuleFinding], after: Sequence[RuleFinding]) -> list[FindingChange]:
    """Return the findings that were added or removed, or whose harm, role, or note changed."""
    known = {finding.rule: finding for finding in before}
    changes = []
    for finding in after:
        old = known.pop(finding.rule, None)
        if old is None:
            changes.append(FindingChange(finding.rule, None, finding.harm, None, finding.role, finding.note))
        elif (old.harm, old.role, old.note) != (finding.harm, finding.role, finding.note):
            note = finding.note if finding.note != old.note else ""
            changes.append(FindingChange(finding.rule, old.harm, finding.harm, old.role, finding.role, note))
    changes += [FindingChange(old.rule, old.harm, None, old.role, None) for old in known.values()]
    return changes


def noted_in(before: Assessment, after: Assessment) -> list[Noted]:
    """Return the changes that reports do not show, such as facts that only later assessors use."""
    facts = []
    if after.facts is not before.facts:
        new = (name for name, value in asdict(after.facts).items() if value is True)
        facts = [name.replace("_", "-") for name in new if getattr(before.facts, name) is not True]
    noted = [Noted(None, facts)] if facts else []
    known = {finding.rule: finding for finding in before.found}
    present = {finding.rule for finding in after.found}
    for finding in after.found:
        old = known.get(finding.rule)
        new_facts = sorted(finding.facts - (old.facts if old is not None else frozenset()))
        if finding.rule in after.ends - before.ends:
            new_facts.append("ends-a-stall")
        explained = dict.fromkeys(
            rule for rule in finding.explains if rule in present and rule != finding.rule
        )
        explains = [rule for rule in explained if old is None or rule not in old.explains]
        if new_facts or explains:
            noted.append(Noted(finding.rule, new_facts, explains))
    return noted
