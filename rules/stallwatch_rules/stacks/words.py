"""What the ranks of a stall do, as a message of one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.text.digest import fold_ranks

_MOST_GROUPS = 4
DATA_LOADING = "data loading"  # what `kinds` calls a loader's call: the aside would repeat it
_IN_CALL = frozenset(("data", "rollout", "reward", "save", "load", "compile"))  # kinds that share a template
_WITH_ASIDE = frozenset(("joining", "data", "rollout", "reward", "save", "load"))


def sentence(stacks: StallStacks) -> Text:
    """``Ranks 0, 2 wait in all_gather (…); rank 1 is in torch.save (…).``; empty where nothing is known."""
    if not stacks.groups:
        return ""
    alone = len(stacks.groups) == 1 and not stacks.elsewhere and len(stacks.groups[0].ranks) > 1
    shown = _most_telling(stacks)
    clauses: list[str | Message] = [_clause(group, alone=alone) for group in shown]
    left_out = sum(len(group.ranks) for group in stacks.groups) - sum(len(group.ranks) for group in shown)
    if left_out:
        clauses.append(message("stacks.more", number=left_out))
    if stacks.elsewhere and not stacks.odd:
        clauses.append(message("stacks.elsewhere", number=stacks.elsewhere))
    return message("stacks.sentence", clauses=clauses)


def titled(apart: Sequence[StackGroup], title: Text) -> Text:
    """Return the title behind what these ranks do: ``Rank 1 is in torch.save (…); beside that: …``."""
    return message("stacks.beside", lead=lead(apart), title=title) if apart else title


def lead(apart: Sequence[StackGroup]) -> Message:
    """Return what these ranks do, as the beginning of a title."""
    return message("stacks.lead", clauses=[_clause(group) for group in apart[:_MOST_GROUPS]])


def placed(place: str) -> Text:
    """Return a place such as ``train.py:42 in step`` as a message."""
    at, found, function = place.partition(" in ")
    return message("stacks.place", at=at, function=function) if found else place


def _most_telling(stacks: StallStacks) -> list[StackGroup]:
    """The largest groups of the others, and the odd ones, which come last."""
    odd = [group for group in stacks.groups if group.ranks[0] in stacks.odd][-_MOST_GROUPS + 1 :]
    rest = [group for group in stacks.groups if group.ranks[0] not in stacks.odd]
    return rest[: _MOST_GROUPS - len(odd)] + odd


def _clause(group: StackGroup, *, alone: bool = False) -> Message:
    ranks, count = fold_ranks(group.ranks), len(group.ranks)
    who = message("stacks.all", ranks=ranks) if alone else message("stacks.who", ranks=ranks, count=count)
    about: list[str | Message] = []
    what: Text = group.what
    if group.condition != "alive":
        kind: str = group.condition
    else:
        kind = "busy" if group.busy and group.place else group.kind
        if group.what == DATA_LOADING:
            what = message("stacks.aside-data")
        elif group.kind in _WITH_ASIDE:
            about.append(message(f"stacks.aside-{group.kind}"))
    if group.note and group.kind == "lock":
        about.append(message("stacks.held-by", holder=group.note))
    if group.place and kind not in ("busy", "code"):
        about.append(placed(group.place))
    if group.locked_out:
        about.append(message("stacks.locked-out"))
    if group.collective is not None:
        about.append(message("stacks.counted", number=group.collective))
    kind = "in" if kind in _IN_CALL else "collective" if kind == "joining" else kind
    return message(f"stacks.{kind}", who=who, count=count, what=what, place=placed(group.place), about=about)
