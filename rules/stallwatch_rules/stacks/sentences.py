"""Create messages about the activities of the ranks in a stall and about the ranks that hold up the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from stallwatch_rules.messages import Message, Text, has, message
from stallwatch_rules.stacks.records import StackGroup, StallStacks
from stallwatch_rules.stacks.spans import ranks_in
from stallwatch_rules.text.digest import fold_names, fold_ranks

_MOST_GROUPS = 4
_MOST_HOSTS = 4
_MOST_SHOWN = 40  # maximum number of characters in a list of ranks such as "0–2, 16"
_MOST_HOST_NAMES = 48  # maximum number of characters in a short list of hostnames
DATA_LOADING = "data loading"  # label in `kinds` that is not repeated in parentheses

# Kinds of activity that have the same message template.
_IN_CALL = frozenset(("data", "rollout", "reward", "save", "load", "compile"))
_WITH_ASIDE = frozenset(("joining", "data", "rollout", "reward", "save", "load"))
# Conditions and kinds of activity that a title states in addition to the location.
_IN_TITLE = frozenset(("stopped", "blocked", "busy", "lock", "debugger", "network", "process", "input"))


def sentence(stacks: StallStacks) -> Text:
    """Return a sentence such as ``Ranks 0, 2 wait in all_gather (…); rank 1 is in torch.save (…).``.

    If the run has several hosts, the sentence begins with the ranks to blame and names their hosts.
    """
    if not stacks.groups:
        return ""
    stacks = msgspec.structs.replace(stacks, groups=_joined_if_worded_alike(stacks))
    shown = _most_informative(stacks)
    left_out = sum(len(group.ranks) for group in stacks.groups) - sum(len(group.ranks) for group in shown)
    if stacks.hosts:
        clauses = _clauses_by_host(stacks, shown)
    else:
        alone = len(stacks.groups) == 1 and not stacks.elsewhere and len(stacks.groups[0].ranks) > 1
        clauses = [
            _clause(group, _subject(group, "stacks.all" if alone else "stacks.who")) for group in shown
        ]
    if left_out:
        clauses.append(message("stacks.more", number=left_out))
    if stacks.elsewhere and not stacks.odd and not stacks.silent:
        key = "stacks.not-known" if stacks.hosts else "stacks.elsewhere"
        clauses.append(message(key, number=stacks.elsewhere))
    if stacks.candidates and not stacks.odd:
        clauses.append(message("stacks.among", who=_ranks(stacks.candidates)))
    elif stacks.why == "unfinished" and not stacks.odd:
        clauses.append(message("stacks.unfinished"))
    return message("stacks.sentence", clauses=clauses)


def _clauses_by_host(stacks: StallStacks, shown: Sequence[StackGroup]) -> list[str | Message]:
    """Return the parts of a sentence about ranks on several hosts. The odd ranks come first."""
    host_of = {rank: host for host, spans in stacks.hosts.items() for rank in ranks_in(spans)}
    clauses: list[str | Message] = []
    if stacks.silent:
        hosts = ", ".join(stacks.silent[:_MOST_HOSTS])
        unknown = len(stacks.silent) - _MOST_HOSTS
        more = [message("stacks.more-hosts", number=unknown)] if unknown > 0 else []
        about: list[str | Message] = [_ranks(stacks.odd)] if stacks.why == "unreachable" else []
        count = len(stacks.silent)
        clauses.append(message("stacks.silent", hosts=[hosts, *more], count=count, about=about))
    odd = [group for group in shown if group.ranks[0] in stacks.odd]
    rest = [group for group in shown if group.ranks[0] not in stacks.odd]
    for group in [*odd, *rest]:
        hosts_of = {host_of[rank] for rank in group.ranks if rank in host_of}
        number = len(group.ranks)
        if not hosts_of:
            who = _subject(group)
        elif len(hosts_of) == 1:
            who = message("stacks.on", who=_ranks(group.ranks), count=number, host=min(hosts_of))
        else:
            whole = len(rest) == 1 and len(stacks.groups) == len(odd) + 1 and group in rest
            every = "stacks.rest" if clauses else "stacks.over" if stacks.elsewhere else "stacks.every"
            key = every if whole else "stacks.over"
            who = message(key, who=_ranks(group.ranks), number=number, hosts=len(hosts_of))
        clauses.append(_clause(group, who))
    return clauses


def _ranks(ranks: Sequence[int]) -> Message:
    """Return the ranks as text. If the text is too long, return the number of ranks instead."""
    folded = fold_ranks(ranks)
    if len(folded) <= _MOST_SHOWN:
        return message("stacks.numbers", ranks=folded, count=len(ranks))
    return message("stacks.many", number=len(ranks))


def with_title_prefix(title: Text, stacks: StallStacks) -> Text:
    """Return the title of a stall with the ranks that hold up the run and their location, if known.

    Example: ``No step …, and no error: rank 1 holds up the run at train.py:30 in main``.
    """
    blame = blamed(stacks)
    return message("stacks.titled", title=bare_title(title), blame=blame) if blame else title


def bare_title(title: Text) -> Text:
    """Return a title without the ranks that `with_title_prefix` added."""
    while isinstance(title, Message) and names_ranks(title):
        title = cast("Text", title.params["title"])
    return title


def names_ranks(title: Text) -> bool:
    """Return whether a title already mentions ranks."""
    return has(title, "stacks.titled", "diagnosis.of-ranks", "diagnosis.of-ranks-on")


def blamed(stacks: StallStacks) -> Text:
    """Return text such as ``rank 1 holds up the run at train.py:30 in main``, or "" if nothing is known.

    The text also states why the ranks wait, if this is known.
    """
    if stacks.hosts and (found := _blame_of_hosts(stacks)):
        return found
    place = place_of(stacks)
    if not stacks.odd:
        return _with_state(message("stacks.at", place=place), stacks) if place else ""
    hosts = hosts_of(stacks, stacks.odd)
    key = f"{_key_of_blame(stacks)}-on" if hosts else _key_of_blame(stacks)
    ranks = _ranks(stacks.odd) if hosts else fold_ranks(stacks.odd)
    who = message(key, ranks=ranks, count=len(stacks.odd), hosts=few_hosts(hosts))
    return _with_state(message("stacks.who-at", who=who, place=place) if place else who, stacks)


def _with_state(blame: Message, stacks: StallStacks) -> Message:
    """If all ranks that hold up the run are in the same state, add the state to the text."""
    states = {state_of(group) for group in suspects(stacks)}
    state = states.pop() if len(states) == 1 else ""
    if state not in _IN_TITLE:
        return blame
    return message("stacks.in-state", blame=blame, state=message(f"stacks.state-{state}"))


def state_of(group: StackGroup) -> str:
    """Return the condition of the ranks if they are not alive, or else the kind of their activity."""
    if group.condition != "alive":
        return group.condition
    return "busy" if group.busy and group.place else group.kind


def located(stacks: StallStacks) -> Text:
    """Return the odd ranks and their location, such as ``rank 1 at train.py:30 in main``.

    The text is empty if the location is unknown.
    """
    place = place_of(stacks)
    if not place or not stacks.odd:
        return message("stacks.at", place=place) if place else ""
    return message("stacks.who-at", who=_ranks(stacks.odd), place=place)


def place_of(stacks: StallStacks) -> Text:
    """Return the location of the ranks that hold up the run, or "" if it is unknown or not unique."""
    places = {group.place for group in suspects(stacks)}
    return placed(places.pop()) if len(places) == 1 else ""


def _blame_of_hosts(stacks: StallStacks) -> Text:
    """Return the text for a run on several hosts in which no single rank can be blamed."""
    if stacks.why == "unreachable":
        hosts = stacks.silent or hosts_of(stacks, stacks.odd)
        return message("stacks.unreachable", hosts=few_hosts(hosts), count=len(hosts))
    if stacks.odd:
        return ""
    if stacks.why in ("outside", "frozen"):
        return message(f"stacks.all-{stacks.why}")
    return message("stacks.cannot-tell", ranks=_ranks(stacks.candidates)) if stacks.candidates else ""


def _key_of_blame(stacks: StallStacks) -> str:
    if stacks.why != "diverged":
        return "stacks.holds-up"
    everybody = sum(len(group.ranks) for group in stacks.groups)
    return "stacks.went-apart" if len(stacks.odd) == everybody else "stacks.went-another-way"


def suspects(stacks: StallStacks) -> list[StackGroup]:
    """Return the groups of ranks that hold up the run.

    If all ranks are in one group and no rank is odd, return this group.
    """
    if stacks.odd:
        return odd_groups(stacks)
    return stacks.groups if len(stacks.groups) == 1 else []


def odd_groups(stacks: StallStacks) -> list[StackGroup]:
    """Return the groups that contain an odd rank."""
    return [group for group in stacks.groups if not set(group.ranks).isdisjoint(stacks.odd)]


def hosts_of(stacks: StallStacks, ranks: Sequence[int]) -> list[str]:
    """Return the hosts of these ranks, in the run's order of hosts.

    The list is empty for a run on one host.
    """
    wanted = set(ranks)
    return [host for host, spans in stacks.hosts.items() if not wanted.isdisjoint(ranks_in(spans))]


def stacks_file(stacks: StallStacks) -> tuple[str, str]:
    """Return the host and path of the file with the first odd rank's stacks, or empty strings if unknown.

    Only the stacks of a run on several hosts contain such paths.
    """
    for ranks, path in stacks.files.items():
        if stacks.odd and stacks.odd[0] in ranks_in(ranks):
            return next(iter(hosts_of(stacks, stacks.odd[:1])), ""), path
    return "", ""


def few_hosts(hosts: Sequence[str]) -> Text:
    """Return a short list of hosts, such as ``n1–n3, n7``.

    If the list is too long, return the number of hosts instead.
    """
    folded = fold_names(hosts)
    return folded if len(folded) <= _MOST_HOST_NAMES else message("stacks.many-hosts", count=len(hosts))


def placed(place: str) -> Text:
    """Return a location in code, such as ``train.py:42 in step``, as a message."""
    at, found, function = place.partition(" in ")
    return message("stacks.place", at=at, function=function) if found else place


def _joined_if_worded_alike(stacks: StallStacks) -> list[StackGroup]:
    """Join groups that differ only in facts that a sentence does not state, such as their last step."""
    joined: dict[tuple[object, ...], StackGroup] = {}
    for group in stacks.groups:
        odd = group.ranks[0] in stacks.odd
        key = (odd, state_of(group), group.what, group.place, group.note, group.locked_out, group.collective)
        alike = joined.get(key)
        ranks = group.ranks if alike is None else sorted([*alike.ranks, *group.ranks])
        joined[key] = msgspec.structs.replace(alike or group, ranks=ranks)
    return list(joined.values())


def _most_informative(stacks: StallStacks) -> list[StackGroup]:
    """Return the groups to describe: the largest groups that are not odd, and then the odd groups."""
    odd = [group for group in stacks.groups if group.ranks[0] in stacks.odd][-_MOST_GROUPS + 1 :]
    rest = [group for group in stacks.groups if group.ranks[0] not in stacks.odd]
    return rest[: _MOST_GROUPS - len(odd)] + odd


def _subject(group: StackGroup, key: str = "stacks.who") -> Message:
    return message(key, ranks=fold_ranks(group.ranks), count=len(group.ranks))


def _clause(group: StackGroup, who: Message) -> Message:
    count = len(group.ranks)
    about: list[str | Message] = []
    what: Text = group.what
    kind = state_of(group)
    if group.condition == "alive":
        if group.what == DATA_LOADING:
            what = message("stacks.aside-data")
        elif group.kind in _WITH_ASIDE:
            about.append(message(f"stacks.aside-{group.kind}"))
    if group.note and group.kind == "lock":
        about.append(message("stacks.held-by", holder=group.note))
    if kind == "unknown" and group.place:
        kind = "last"  # the location is from a flight recorder dump
    if group.place and kind not in ("busy", "code", "last"):
        about.append(placed(group.place))
    if group.locked_out:
        about.append(message("stacks.locked-out"))
    if group.collective is not None:
        about.append(message("stacks.counted", number=group.collective))
    kind = "in" if kind in _IN_CALL else "collective" if kind == "joining" else kind
    return message(f"stacks.{kind}", who=who, count=count, what=what, place=placed(group.place), about=about)
