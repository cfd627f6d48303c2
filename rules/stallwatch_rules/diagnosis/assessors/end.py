"""How the log ends, and what stands far from its end."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.diagnosis.snapshot import Assessment, Snapshot
from stallwatch_rules.diagnosis.stood import is_end
from stallwatch_rules.text.lazy import lazy

FAR = 500  #: lines after which a failure is not what the log ended with
_OWN_WORK = frozenset(("data", "rlhf-and-rollout"))  # families of what a rank does by itself
_HANGS = lazy(r"timeout|timed-out|heartbeat|hang|stuck|sigabrt")
_TIMED_OUT = lazy(r"[Tt]imed out|[Tt]ime-?out")


def end(run: Snapshot, now: Assessment) -> None:
    """Conclude how the log ends: in a timeout of a collective, or in a failure of a rank's own.

    Example: ``Watchdog caught collective operation timeout`` stands last: timed out, and a peer is lost.
    """
    if run.clock.ended:
        now.ends = {one.rule for one in now.found if is_end(one)}
    found = [one for one in now.found if one.rule not in now.ends]
    own = [one for one in found if one.harm == "fatal" and (one.role == "cause" or _is_of_own_work(one))]
    timed_out = ends_in_timeout(found) or now.exceptions.timed_out
    other = any(not seen.timed_out for seen in now.exceptions.fatal)
    lost = timed_out or any(one.harm == "fatal" and one.role == "symptom" for one in found)
    failed_otherwise = bool(own) or (other and not timed_out)
    now.facts = replace(now.facts, lost=lost, timed_out=timed_out, failed_otherwise=failed_otherwise)


def distance(run: Snapshot, now: Assessment) -> None:
    """Doubt what stands far from the end of its log: it did not end the run, as far as the log shows.

    Example: ``torch.OutOfMemoryError``, then 600 lines without a step: less sure.
    """
    for one in now.found:
        after = [run.streams[key].index - 1 - hits.last_index for key, hits in one.hits.items()]
        if after and not run.died and min(after) > FAR:
            one.facts.add("long-before-the-end")


def _is_of_own_work(one: Found) -> bool:
    """Whether a symptom is of what a rank does by itself: no standstill of the others brings it about."""
    return one.role == "symptom" and one.page.family in _OWN_WORK and "timeout" not in one.rule


def ends_in_timeout(found: Iterable[Found]) -> bool:
    """Whether a symptom of a standstill ended the run: a collective's timeout, a watchdog's abort."""
    for one in found:
        if one.harm == "fatal" and one.role == "symptom":
            first = one.first
            if _HANGS.search(one.rule) or (first is not None and _TIMED_OUT.search(first.line.text)):
                return True
    return False
