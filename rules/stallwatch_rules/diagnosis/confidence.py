"""Confidence in a primary cause: one table, so that it can be read and calibrated.

The numbers are rough frequencies: of the verdicts given at 0.9 and more, nine in ten should be right. Each
number belongs to a named fact.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from stallwatch_rules.records import Role

#: What is known of the other findings that could be the cause as well.
Rivals = Literal["none", "later", "later-step", "unordered"]

#: What a finding of this role is worth beside its rivals.
BASE: dict[tuple[Role, Rivals], float] = {
    ("cause", "none"): 0.95,  # one cause, nothing else that could be it
    ("cause", "later"): 0.85,  # other causes came later
    ("cause", "later-step"): 0.75,  # other causes came at a later step; no times
    ("cause", "unordered"): 0.6,  # other causes, and nothing tells which came first
    ("symptom", "none"): 0.9,  # something failed elsewhere, and this text does not show where: that is said
    ("symptom", "later"): 0.5,
    ("symptom", "later-step"): 0.5,
    ("symptom", "unordered"): 0.5,
}
WRAPPER = 0.3  #: a launcher says that something failed
LEAST, MOST = 0.1, 0.97
SEEN = 0.9  #: at least, of a stall whose processes were looked at: their stacks say where they are

#: What a fact takes off, by its name.
LESS: dict[str, float] = {
    "unknown-beside": 0.45,  # an exception that no rule knows could be the cause instead
}
#: What a fact allows at most, by its name.
CAPS: dict[str, float] = {
    "judged": 0.6,  # concluded from the run's progress, without a line that says so
    "long-before-the-end": 0.7,  # much was printed after it, and nothing says that the run died
    "signal-only": 0.75,  # a SIGKILL, and no word of memory; a SIGABRT, and no word of why
    "left-early": 0.8,  # a rank was seen to end before the others, which then stood or failed
    "ending-counted": 0.9,  # the kernel's counter or the scheduler said so
    "ending-signal": 0.7,  # SIGSEGV and its like, and nothing in the log
    "aborted-at-exit": 0.6,  # an abort after the last step
    "ending-told-to-stop": 0.5,  # a signal from outside, nothing in the log
    "ending-killed": 0.4,  # SIGKILL, nothing in the log
    "memory-near-limit": 0.85,  # SIGKILL, and memory was seen to be nearly used up
    "memory-far-from-limit": 0.4,  # SIGKILL, and memory was seen to be far from used up
    "inferred-place": 0.6,  # an exception that no rule knows, from code that mostly raises for this reason
    "killed-not-counted": 0.85,  # the same, and the kernel's counter says that it was not the kernel
}


def confidence(role: Role, rivals: Rivals = "none", facts: Collection[str] = ()) -> float:
    """Return the confidence by the table; ``facts`` are names in ``LESS`` and ``CAPS``."""
    sure = WRAPPER if role == "wrapper" else BASE[role, rivals]
    sure = min([sure, *(CAPS[fact] for fact in facts if fact in CAPS)])
    sure -= sum(LESS[fact] for fact in facts if fact in LESS)
    return round(min(max(sure, LEAST), MOST), 2)
