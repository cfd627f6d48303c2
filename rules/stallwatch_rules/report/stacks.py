"""Write the stacks of all threads of a stalled run as text, grouped by rank.

Ranks whose stacks deviate from the stacks of most ranks come first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from stallwatch_rules.locale import render, say
from stallwatch_rules.messages import message
from stallwatch_rules.stacks.folding import line
from stallwatch_rules.stacks.records import RankAnswer, StallStacks, ThreadStack
from stallwatch_rules.stacks.sentences import sentence
from stallwatch_rules.text.digest import counted, fold_ranks

_MOST_THREADS = 32
_ORIGINS = {
    "probe": "reported by the rank",
    "signal": "written by faulthandler, because no thread of the rank could respond",
    "py-spy": "read by py-spy",
    "": "no stack",
}


def listing(stacks: StallStacks, ranks: Sequence[RankAnswer], run: str = "") -> str:
    """Return the text of all stacks. Ranks whose threads are all at the same lines share one section."""
    return "\n".join(_lines(stacks, ranks, run)) + "\n"


def folded(stacks: StallStacks, language: str = "en") -> str:
    """Return, as text, the stacks that an incident stores, with one stack for each group of ranks.

    Groups that deviate from the other groups come first.
    """
    parts = []
    for group in sorted(stacks.groups, key=lambda group: group.ranks[0] not in stacks.odd):
        head = say(
            "stacks.folded-odd" if group.ranks[0] in stacks.odd else "stacks.folded",
            language,
            count=len(group.ranks),
            ranks=fold_ranks(group.ranks),
            condition=message(f"stacks.condition-{group.condition}"),
        )
        parts.append("\n".join([head, *(f"  {frame}" for frame in group.frames)]))
    return "\n\n".join(parts)


def _lines(stacks: StallStacks, ranks: Sequence[RankAnswer], run: str) -> Iterator[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(stacks.time))
    yield f"Stacks{f' of {run}' if run else ''} at {at} UTC, {stacks.seconds:.1f} s after the request"
    if stacks.groups:
        yield render(sentence(stacks))
    alike: dict[tuple[object, ...], list[RankAnswer]] = {}
    for rank in sorted(ranks, key=lambda answer: (answer.rank not in stacks.odd, answer.rank)):
        alike.setdefault((rank.condition, rank.origin, rank.threads), []).append(rank)
    for group in alike.values():
        first = group[0]
        numbers = [rank.rank for rank in group]
        yield ""
        yield (
            f"=== rank{'' if len(group) == 1 else 's'} {fold_ranks(numbers)}"
            f" (process{'' if len(group) == 1 else 'es'} {', '.join(str(rank.pid) for rank in group)};"
            f" {first.condition}; {_ORIGINS[first.origin]})"
        )
        for rank in group:
            yield from _about(rank)
        for thread in first.threads[:_MOST_THREADS]:
            yield from _thread(thread)
        if len(first.threads) > _MOST_THREADS:
            yield f"  {counted(len(first.threads) - _MOST_THREADS, 'more thread')}"


def _about(rank: RankAnswer) -> Iterator[str]:
    recorded = rank.recorded
    for group, counts in sorted(recorded.counts.items()):
        name = recorded.names.get(group, "")
        about = [recorded.axes.get(name, ""), f"ranks {fold_ranks(recorded.members.get(name, ()))}"]
        members = f" ({', '.join(filter(None, about))})" if name in recorded.members else ""
        done = f", {counts.done} done" if counts.done is not None else ""
        yield f"  rank {rank.rank}: group {name or group}{members}: {counts.joined} collectives joined{done}"
    for wait in rank.recorded.waiting:
        yield f"  rank {rank.rank}: in {wait.operation}, collective {wait.number} of group {wait.name}"
    if rank.lock_holder:
        yield f"  rank {rank.rank}: waits for a file lock held by {rank.lock_holder}"
    if rank.kernel:
        yield f"  rank {rank.rank}: in the kernel at {rank.kernel}"


def _thread(thread: ThreadStack) -> Iterator[str]:
    name = thread.name or ("MainThread" if thread.main else "") or "without a name"
    if thread.task:
        yield f"  task {name}{' (awaited)' if thread.task == 'awaited' else ''}, innermost call last:"
    else:
        yield f"  thread {name}{' (main)' if thread.main else ''}, innermost call last:"
    for frame in thread.frames:
        yield f"    {line(frame)}"
