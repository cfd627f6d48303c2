"""A SIGKILL beside what is known of the memory: the kernel for memory, or somebody from outside."""

from __future__ import annotations

import re
from collections.abc import Collection

from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.endings import MemoryKnown
from stallwatch_rules.judgements.conclusions import concluded
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.text.sentences import say

SIGKILL = "host-oom-sigkill"
FROM_OUTSIDE = "process-killed-from-outside"
GIB = 2**30

_MEMORY = re.compile(r"(?i)memory|\boom|oom[-_ ]?kill")


def tells_of_memory(one: Found) -> bool:
    """Whether a line of the finding says itself that it was about memory."""
    return any(_MEMORY.search(text) for hits in one.hits.values() for text in hits.exemplars)


def weigh_memory(
    found: list[Found],
    catalogue: Catalogue,
    memory: MemoryKnown | None,
    ranks: Collection[int],
    language: str,
) -> None:
    """Tell a kill as what the memory says that it was.

    `ranks` are those that the log names: with one of which nothing is known, it holds lines of other nodes,
    whose memory nobody looked at.
    """
    kill = next((one for one in found if one.rule == SIGKILL and one.harm == "fatal"), None)
    if kill is None or memory is None or tells_of_memory(kill) or "ending-counted" in kill.facts:
        return
    if any(one.harm == "fatal" and SIGKILL in (*one.explains, *one.page.explains) for one in found):
        return  # it is how the run was ended, and by whom is known
    numbers = {"held": f"{memory.held / GIB:.1f}", "limit": f"{memory.limit / GIB:.1f}"}
    speaks = memory.speaks
    if speaks == "for":
        kill.facts -= {"signal-only", "ending-killed"}
        kill.facts.add("memory-near-limit")
        kill.note = say("killed-near-limit", language, **numbers)
    elif speaks == "far":
        kill.facts.add("memory-far-from-limit")
    elif speaks == "against" and FROM_OUTSIDE in catalogue.pages and _all_here(memory, ranks):
        _told_from_outside(found, kill, catalogue, say("killed-from-outside", language, **numbers))


def _all_here(memory: MemoryKnown, ranks: Collection[int]) -> bool:
    return not memory.ranks or set(ranks) <= set(memory.ranks)


def _told_from_outside(found: list[Found], kill: Found, catalogue: Catalogue, note: str) -> None:
    """Put the other rule in the place of the kill, with its lines."""
    named = next((one for one in found if one.rule == FROM_OUTSIDE), None)
    found.remove(kill)
    if named is not None:
        named.note = named.note or note
        return
    one = concluded(catalogue.pages[FROM_OUTSIDE], Judgement("fatal", note))
    one.judged = False  # it was measured
    one.hits, one.occurrences, one.followed, one.count = (
        kill.hits,
        kill.occurrences,
        kill.followed,
        kill.count,
    )
    one.facts.add("killed-not-counted")
    found.append(one)
