"""What there is nothing of but a warning from inside the ranks."""

from __future__ import annotations

from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.judgements.concerns import CONCERNS, SEEN, meaning_of
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.messages import message


def concerns(run: Snapshot, now: Assessment) -> None:
    """Judge what only the probe warned of, such as a model that computes gradients in evaluation mode.

    Example: the probe saw ``loss nan, 3 times in a row``: fatal, though the run goes on.
    """
    ended_well = run.question.failed is False
    for one in now.found:
        hits = one.hits.values()
        if not hits or not all(SEEN in h.first.captures and SEEN in h.last.captures for h in hits):
            continue
        first = one.first
        captures = first.captures if first is not None else {}
        note = meaning_of(captures)
        concern = CONCERNS.get(captures.get(SEEN, ""))
        if ended_well and concern is not None and not concern.lasting:
            one.harm, one.note = "harmless", message("diagnosis.ended-well")
        else:
            one.set(Judgement("fatal" if concern is not None and concern.fatal else "degrading", note))
            one.judged = False  # nothing was concluded: it was seen
