"""Exceptions that programs catch and print as often as they end by them.

A reward function parses what a model wrote, a data set skips the lines that it cannot read, a library tries
whether another one is there: each may print the very traceback that a rank ends with. Only what came after it
tells which it was.
"""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.judgements.recovery import RECOVERED
from stallwatch_rules.messages import message


def handled_exceptions(run: Snapshot, now: Assessment) -> None:
    """Judge failures that programs often handle: a request that timed out, and was sent again.

    Example: ``json.decoder.JSONDecodeError: Extra data``, then no step: fatal.
    """
    found, exceptions, facts, question = now.found, now.exceptions, now.facts, run.question
    otherwise = run.by_hand or question.failed is False or question.kind not in ("", "failed", "unknown")
    # While a run is up, its next line may be the one that shows that it went on.
    up = question.now is not None and question.failed is None and not facts.stalled
    causes = [one for one in found if one.harm == "fatal" and one.role == "cause"]
    for one in found:
        if not one.tagged("often-handled") or not one.hits:
            continue
        soon = one.rule in exceptions.beside or one.tagged("tried-at-start")
        if one.followed >= (1 if soon else RECOVERED):
            one.harm, one.note = "harmless", message("diagnosis.recovered", steps=one.followed)
        elif facts.complete and not facts.died:
            one.harm, one.note = "harmless", message("diagnosis.caught-at-end")
        elif causes or otherwise or up or _outlived(one, exceptions):
            one.note = message("diagnosis.maybe-caught")
        else:
            one.harm = "fatal"
            once = all(hits.count == 1 for hits in one.hits.values())
            # A log may merely end here; and what did not end the run before need not have ended it now.
            one.judged = not once or bool(facts.advances and not facts.died)


def _outlived(one: Found, exceptions: Exceptions) -> bool:
    """Whether an exception that no rule knows came after it on a rank that it should have ended."""
    return any(
        unknown.stream in one.hits and unknown.index > one.hits[unknown.stream].last_index
        for unknown in exceptions.fatal
    )
