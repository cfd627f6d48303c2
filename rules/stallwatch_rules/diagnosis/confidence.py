"""Calculate the confidence in a primary cause by using tables of values that can be calibrated.

The values are rough frequencies. For example, about nine in ten verdicts with a confidence of 0.9 are
expected to be right. Each value belongs to a named fact.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from stallwatch_rules.records import Role

#: The order of the other possible causes relative to the finding, as far as the order is known.
Rivals = Literal["none", "later", "later-step", "unordered"]

#: The confidence in a finding, by its role and by the order of its rivals.
BASE: dict[tuple[Role, Rivals], float] = {
    ("cause", "none"): 0.95,  # one cause, no other candidate
    ("cause", "later"): 0.85,  # other causes came later
    ("cause", "later-step"): 0.75,  # other causes came at a later step; times are unknown
    ("cause", "unordered"): 0.6,  # other causes, in unknown order
    ("symptom", "none"): 0.9,  # the log lacks the failure that caused the symptom, as the report states
    ("symptom", "later"): 0.5,
    ("symptom", "later-step"): 0.5,
    ("symptom", "unordered"): 0.5,
}
WRAPPER = 0.3  #: confidence in a launcher's report of a failure
LEAST, MOST = 0.1, 0.97
#: Minimum confidence in a stall whose stacks were inspected, because stacks show what each process does.
SEEN = 0.9

#: The deduction from the confidence for a fact, by the name of the fact.
LESS: dict[str, float] = {
    "unknown-beside": 0.45,  # an unknown exception could be the cause instead
}
#: The maximum confidence that a fact allows, by the name of the fact.
CAPS: dict[str, float] = {
    "judged": 0.6,  # inferred from the run's progress, not shown by any line
    # Much output follows the finding, and no line shows that the run died.
    "long-before-the-end": 0.7,
    "signal-only": 0.75,  # a SIGKILL whose lines do not mention memory, or a SIGABRT for no stated reason
    "left-early": 0.8,  # a rank ended before the other ranks, which then stalled or failed
    "ending-counted": 0.9,  # reported by the kernel's counter or the scheduler
    "ending-signal": 0.7,  # a SIGSEGV or a similar signal, for which the log shows no reason
    "aborted-at-exit": 0.6,  # an abort after the last step
    "ending-requested": 0.5,  # a signal from outside, for which the log shows no reason
    "ending-killed": 0.4,  # a SIGKILL for which the log shows no reason
    "memory-near-limit": 0.85,  # a SIGKILL while memory was nearly exhausted
    "memory-far-from-limit": 0.4,  # a SIGKILL while memory was far from exhausted
    "inferred-place": 0.6,  # an unknown exception from code that usually raises exceptions for this reason
    "killed-not-counted": 0.85,  # a SIGKILL that the kernel, according to its own counter, did not send
}


def confidence(role: Role, rivals: Rivals = "none", facts: Collection[str] = ()) -> float:
    """Return the confidence in a primary cause. `facts` are names in the tables ``LESS`` and ``CAPS``."""
    sure = WRAPPER if role == "wrapper" else BASE[role, rivals]
    sure = min([sure, *(CAPS[fact] for fact in facts if fact in CAPS)])
    sure -= sum(LESS[fact] for fact in facts if fact in LESS)
    return round(min(max(sure, LEAST), MOST), 2)
