"""Describe the ranks of a stall for a message: the blamed ranks, their stack, and commands to run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stallwatch_alerts.neutral import neutralise
from stallwatch_rules.locale import render, say, templates
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.records import Frame, StackGroup, StallStacks
from stallwatch_rules.stacks.sentences import placed
from stallwatch_rules.stacks.spans import ranks_in
from stallwatch_rules.text.digest import fold_names, fold_ranks
from stallwatch_rules.text.lazy import lazy

_INNERMOST, _OWN, _FRAME_LIMIT = 2, 2, 120  # shown frames: the innermost, and those of the user's own code
_PATH_LIMIT = 200
_PLACE_LIMIT = 80
_MOST_COMMANDS = 2
_GAP = "…"
_TAKE_STACKS = "py-spy dump --pid {}"
_COMMANDS = {"stall-stopped": "kill -CONT {}", "stall-locked-out": "py-spy dump --native --pid {}"}
_RANKS_LIMIT, _HOSTS_LIMIT = 40, 48  # characters in a title
_OF_HOSTS = ("unreachable", "outside", "frozen", "unfinished")  # values of `why` that have their own advice
_PLAIN = lazy(r"[A-Za-z0-9][\w.-]{0,252}")


def blamed_ranks(stacks: StallStacks, language: str) -> str:
    """Return a short text that names the blamed ranks and their place; empty if neither is known."""
    if stacks.hosts and (found := _of_hosts(stacks, language)):
        return found
    places = {neutralise(render(placed(group.place), language), _PLACE_LIMIT) for group in suspects(stacks)}
    place = places.pop() if len(places) == 1 else ""
    if not stacks.odd:
        return say("alerts.at", language, place=place) if place else ""
    hosts = hosts_of(stacks, stacks.odd)
    key = f"{_holding(stacks)}-on" if hosts else _holding(stacks)
    ranks = _short(stacks.odd, language) if hosts else fold_ranks(stacks.odd)
    holding = say(key, language, ranks=ranks, count=len(stacks.odd), hosts=fold_hosts(hosts, language))
    return say("alerts.who-at", language, who=holding, place=place) if place else holding


def _of_hosts(stacks: StallStacks, language: str) -> str:
    """Return the joint result of a run's hosts if no rank, or no certain rank, is to blame."""
    if stacks.why == "unreachable":
        hosts = stacks.silent or hosts_of(stacks, stacks.odd)
        return say("alerts.unreachable", language, hosts=fold_hosts(hosts, language), count=len(hosts))
    if stacks.odd:
        return ""
    if stacks.why in ("outside", "frozen"):
        return say(f"alerts.all-{stacks.why}", language)
    if stacks.candidates:
        count = len(stacks.candidates)
        return say("alerts.cannot-tell", language, ranks=_short(stacks.candidates, language), count=count)
    return ""


def answered(stacks: StallStacks, language: str) -> str:
    """Return the text with the number of hosts that answered; empty for a run of one host."""
    if not stacks.hosts:
        return ""
    every = {*stacks.hosts, *stacks.silent}
    number = say("alerts.hosts-answered", language, count=len(every - set(stacks.silent)), every=len(every))
    if stacks.groups or not stacks.silent:  # otherwise the sentence about the ranks names the silent hosts
        return number
    return f"{number} {say('alerts.hosts-silent', language, hosts=fold_hosts(stacks.silent, language))}"


def hosts_of(stacks: StallStacks, ranks: Sequence[int]) -> list[str]:
    """Return the hosts of these ranks, in the order of the run's hosts; empty for a run of one host."""
    wanted = set(ranks)
    return [host for host, spans in stacks.hosts.items() if not wanted.isdisjoint(ranks_in(spans))]


def _short(ranks: Sequence[int], language: str) -> str:
    """Return ``rank 1``, ``ranks 0–7``, or only the number of ranks if they are scattered."""
    folded = fold_ranks(ranks)
    key = "some-ranks" if len(folded) <= _RANKS_LIMIT else "so-many"
    return say(f"alerts.{key}", language, ranks=folded, count=len(ranks))


def fold_hosts(hosts: Sequence[str], language: str) -> str:
    """Return host names in short form, such as ``n1–n3, n7``; only their number if that is too long."""
    folded = neutralise(fold_names(hosts), _HOSTS_LIMIT + 1)
    return folded if len(folded) <= _HOSTS_LIMIT else say("alerts.so-many-hosts", language, count=len(hosts))


def _holding(stacks: StallStacks) -> str:
    if stacks.why != "diverged":
        return "alerts.holds-up"
    everybody = sum(len(group.ranks) for group in stacks.groups)
    return "alerts.went-apart" if len(stacks.odd) == everybody else "alerts.went-another-way"


def remedy(stacks: StallStacks, language: str) -> str:
    """Return the advice for the blamed ranks, or for all ranks; empty if their states differ."""
    if stacks.why == "diverged":
        return say("alerts.stall-diverged", language)
    if stacks.hosts and stacks.why in _OF_HOSTS:
        return say(f"alerts.stall-{stacks.why}", language)
    odd = [group for group in stacks.groups if not stacks.odd or set(group.ranks) & set(stacks.odd)]
    if len({(group.kind, group.condition, group.locked_out) for group in odd}) != 1:
        return ""
    group = odd[0]
    key = f"stall-{group.condition}" if group.condition != "alive" else f"stall-in-{group.kind}"
    if key == "stall-in-code" and group.locked_out:
        key = "stall-locked-out"
    if key not in templates("en", "alerts"):
        return ""
    pid = next((str(stacks.pids[rank]) for rank in group.ranks if rank in stacks.pids), "PID")
    command = _COMMANDS.get(key, _TAKE_STACKS).format(pid)
    return say(f"alerts.{key}", language, command=_there(command, stacks, group.ranks))


def stack(stacks: StallStacks, language: str) -> list[str]:
    """Return lines with the end of the blamed ranks' stack, outermost first; empty if all ranks differ.

    For a rank that waits for its data loader, return the stack of the loader's worker.
    """
    if not stacks.groups or not (stacks.odd or len(stacks.groups) == 1):
        return []
    group = stacks.groups[-1]  # The groups of blamed ranks come last.
    shown = _shown(group.worker_frames or group.frames)
    lines = [f"    {neutralise(frame, _FRAME_LIMIT)}" for frame in shown]
    if not group.worker_frames:
        return lines
    return [say("alerts.loader-worker", language, pid=group.worker or 0), *lines]


def suspects(stacks: StallStacks) -> list[StackGroup]:
    """Return the groups of blamed ranks, or the only group if all ranks do the same."""
    if stacks.odd:
        return [group for group in stacks.groups if set(group.ranks) & set(stacks.odd)]
    return stacks.groups if len(stacks.groups) == 1 else []


def pid_of(stacks: StallStacks | None, rank: int | None) -> int | None:
    """Return the process id of the rank on its host; `None` if unknown."""
    return stacks.pids.get(rank) if stacks is not None and rank is not None else None


def commands(stacks: StallStacks | None, folder: str) -> list[str]:
    """Return commands that show further stacks and the folder of all stacks."""
    found: list[str] = []
    for group in suspects(stacks) if stacks is not None else ():
        if stacks is None or group.condition == "ended":
            continue
        command = _COMMANDS["stall-stopped"] if group.condition == "stopped" else _TAKE_STACKS
        if group.worker is not None:
            found.append(_there(command.format(group.worker), stacks, group.ranks))
        known = [rank for rank in group.ranks if rank in stacks.pids][:_MOST_COMMANDS]
        found += [_there(command.format(stacks.pids[rank]), stacks, [rank]) for rank in known]
    found = found[:_MOST_COMMANDS]
    if folder:
        if stacks is not None and stacks.file:
            found.append(f"less {_path(f'{folder}/{stacks.file}')}")
        found.append(f"stallwatch diagnose {_path(folder)}")
    return found


def _there(command: str, stacks: StallStacks, ranks: Sequence[int]) -> str:
    """Return the command, prefixed by ``ssh`` to the host of these ranks in a multi-host run."""
    hosts = hosts_of(stacks, ranks)
    if not hosts or not _PLAIN.fullmatch(hosts[0]):  # ssh must not parse the host name as an option
        return command
    return f"ssh {hosts[0]} {command}"


def _path(path: str) -> str:
    return neutralise(shlex.quote(path), _PATH_LIMIT)


def _shown(frames: Sequence[str]) -> list[str]:
    """Return the frames to show, outermost first: the innermost frames and the user's calling code."""
    innermost = len(frames) - _INNERMOST
    own = [at for at, frame in enumerate(frames) if not is_library(_frame(frame))]
    shown = sorted({*own[-_OWN:], *range(max(0, innermost), len(frames))})
    lines: list[str] = []
    for before, at in zip([None, *shown], shown, strict=False):
        if before is not None and at > before + 1:
            lines.append(_GAP)
        lines.append(frames[at])
    return lines


def _frame(text: str) -> Frame:
    """Parse a frame such as ``file:line in function``."""
    place, _, function = text.partition(" in ")
    return Frame(place.rpartition(":")[0], 0, function)
