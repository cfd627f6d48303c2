"""The signals that end a run from outside: their rules, the exit codes, and the ranks that they ended."""

from __future__ import annotations

from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.peers import ended_first, ended_with
from stallwatch_rules.pages.page import Tag
from stallwatch_rules.text.lazy import lazy

SIGTERM = "secondary-sigterm-cascade"
SIGKILL = "host-oom-sigkill"
FROM_OUTSIDE = "process-killed-from-outside"
TOLD_AS = {SIGKILL: FROM_OUTSIDE}  #: what `memory` tells a finding as, where it is not what it seems
BY_SIGKILL = (-9, 137)
BY_SEGFAULT = (-11, 139)  #: of a process, and of a shell that ran it
#: Of launchers: torchrun's agent, its SignalException, accelerate's main process.
_TOLD_TO_END = lazy(r"death signal|got signal|Main process received|closing signal SIGHUP")
_MEMORY = lazy(r"(?i)memory|\boom|oom[-_ ]?kill")
_OTHERS = (3, 5, 10, 12, 13, 14, 16, 24, 25, 26, 27, 29, 30, 31, *range(34, 65))
#: The exit codes that stand for a tag: of a process that a signal ended, and of a shell that ran it.
ENDED_WITH: dict[Tag, tuple[int, ...]] = {
    "sigsegv": BY_SEGFAULT,
    "sigbus": (-7, 135),
    "sigabrt": (-6, 134),
    "sigfpe": (-8, 136),
    "sigill": (-4, 132),
    "other-signal": (*(-number for number in _OTHERS), *(128 + number for number in _OTHERS)),
}


def tells_of_memory(one: Found) -> list[str]:
    """The lines of the finding that say themselves that it was about memory."""
    texts = [text for hits in one.hits.values() for text in (*hits.exemplars, hits.last.line.text)]
    return [text for text in dict.fromkeys(texts) if _MEMORY.search(text)]


def told_from_outside(sigterm: Found, found: list[Found]) -> bool:
    """Whether the launcher was told to end, or the run was ended by who can tell it so."""
    texts = (text for hits in sigterm.hits.values() for text in hits.exemplars)
    told = not sigterm.hits or any(_TOLD_TO_END.search(text) for text in texts)
    return told or any(one.tagged("ends-from-outside") and one.harm == "fatal" for one in found)


def rank_of_end(one: Found, streams: Streams) -> int | None:
    """The rank whose end by a signal the finding is, as launchers tell: of several, the first."""
    codes = [code for tag, every in ENDED_WITH.items() if one.tagged(tag) for code in every]
    ended = ended_with(BY_SIGKILL if one.rule in (SIGKILL, FROM_OUTSIDE) else codes, streams)
    first = ended_first(streams)
    if first is not None and first[0] in ended:
        return first[0]
    return next(iter(ended)) if len(ended) == 1 else None
