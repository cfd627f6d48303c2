"""Where the ranks of a stall are, for a message: who holds up the run, its stack, and how to look further."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stallwatch_alerts.neutral import neutralise
from stallwatch_rules.locale import render, say, templates
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.records import Frame, StackGroup, StallStacks
from stallwatch_rules.stacks.words import placed
from stallwatch_rules.text.digest import fold_ranks

_INNERMOST, _OWN, _FRAME_LIMIT = 2, 2, 120  # frames that are shown: of any code, and of the user's
_PATH_LIMIT = 200
_PLACE_LIMIT = 80
_MOST_COMMANDS = 2
_GAP = "…"


def who(stacks: StallStacks, language: str) -> str:
    """Return who holds up the run, and where, in a few words; empty if neither is known."""
    places = {neutralise(render(placed(group.place), language), _PLACE_LIMIT) for group in suspects(stacks)}
    place = places.pop() if len(places) == 1 else ""
    if not stacks.odd:
        return say("alerts.at", language, place=place) if place else ""
    holding = say(_holding(stacks), language, ranks=fold_ranks(stacks.odd), count=len(stacks.odd))
    return say("alerts.who-at", language, who=holding, place=place) if place else holding


def _holding(stacks: StallStacks) -> str:
    if stacks.why != "diverged":
        return "alerts.holds-up"
    everybody = sum(len(group.ranks) for group in stacks.groups)
    return "alerts.went-apart" if len(stacks.odd) == everybody else "alerts.went-another-way"


def remedy(stacks: StallStacks, language: str) -> str:
    """Return what to do about the odd ranks, or all of them if these do the same; empty if they do not."""
    if stacks.why == "diverged":
        return say("alerts.stall-diverged", language)
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
    return say(f"alerts.{key}", language, pid=pid)


def stack(stacks: StallStacks, language: str) -> list[str]:
    """Lines with the end of the stack to look at, outermost first; empty if all ranks differ.

    Of a rank that waits for its data loader, that of the worker.
    """
    if not stacks.groups or not (stacks.odd or len(stacks.groups) == 1):
        return []
    group = stacks.groups[-1]  # odd ones come last
    shown = _shown(group.worker_frames or group.frames)
    lines = [f"    {neutralise(frame, _FRAME_LIMIT)}" for frame in shown]
    if not group.worker_frames:
        return lines
    return [say("alerts.loader-worker", language, pid=group.worker or 0), *lines]


def suspects(stacks: StallStacks) -> list[StackGroup]:
    """The ranks to look at: the odd ones, or all if they do the same."""
    if stacks.odd:
        return [group for group in stacks.groups if set(group.ranks) & set(stacks.odd)]
    return stacks.groups if len(stacks.groups) == 1 else []


def pid_of(stacks: StallStacks | None, rank: int | None) -> int | None:
    """The process of a rank on the host of the message."""
    return stacks.pids.get(rank) if stacks is not None and rank is not None else None


def commands(stacks: StallStacks | None, folder: str) -> list[str]:
    """What to type to look further, and where all stacks are."""
    found = []
    for group in suspects(stacks) if stacks is not None else ():
        command = "kill -CONT {}" if group.condition == "stopped" else "py-spy dump --pid {}"
        pids = (
            [stacks.pids[rank] for rank in group.ranks if rank in stacks.pids] if stacks is not None else []
        )
        if group.worker is not None:
            pids = [group.worker, *pids]
        if group.condition != "ended":
            found += [command.format(pid) for pid in pids]
    found = found[:_MOST_COMMANDS]
    if folder:
        if stacks is not None and stacks.file:
            found.append(f"less {_path(f'{folder}/{stacks.file}')}")
        found.append(f"stallwatch diagnose {_path(folder)}")
    return found


def _path(path: str) -> str:
    return neutralise(shlex.quote(path), _PATH_LIMIT)


def _shown(frames: Sequence[str]) -> list[str]:
    """Of a stack, outermost first: its end, and who of the user's own code called it."""
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
    """Of ``file:line in function``."""
    place, _, function = text.partition(" in ")
    return Frame(place.rpartition(":")[0], 0, function)
