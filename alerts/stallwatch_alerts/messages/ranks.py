"""Where the ranks of a stall are, for a message: who holds up the run, its stack, and how to look further."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stallwatch_alerts.neutral import neutralise
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.records import Frame, StackGroup, StallStacks
from stallwatch_rules.stacks.words import place_in
from stallwatch_rules.text.digest import fold_ranks

_INNERMOST, _OWN, _FRAME_LIMIT = 2, 2, 120  # frames that are shown: of any code, and of the user's
_PATH_LIMIT = 200
_PLACE_LIMIT = 80
_MOST_COMMANDS = 2
_GAP = "…"
_WORDS = {
    "en": {
        "one": "rank {ranks} holds up the run",
        "many": "ranks {ranks} hold up the run",
        "diverged": "{which} {ranks} went another way than the others",
        "apart": "ranks {ranks} went different ways",
        "there": "{who} at {place}",
        "alone": "at {place}",
        "worker": "Its data loader's worker (PID {pid}):",
    },
    "zh": {
        "one": "rank {ranks} 拖住了任务",
        "many": "rank {ranks} 拖住了任务",
        "diverged": "rank {ranks} 与其他 rank 走了不同的路径",
        "apart": "rank {ranks} 走了不同的路径",
        "there": "{who}（{place}）",
        "alone": "停在 {place}",
        "worker": "它的数据加载 worker（PID {pid}）：",
    },
}


def who(stacks: StallStacks, language: str) -> str:
    """Who holds up the run, and where, in a few words; empty if neither is known."""
    words = _WORDS["zh" if language.startswith("zh") else "en"]
    places = {neutralise(place_in(group.place, language), _PLACE_LIMIT) for group in suspects(stacks)}
    place = places.pop() if len(places) == 1 else ""
    if not stacks.odd:
        return words["alone"].format(place=place) if place else ""
    which = "rank" if len(stacks.odd) == 1 else "ranks"
    holding = words[_how(stacks)].format(ranks=fold_ranks(stacks.odd), which=which)
    return words["there"].format(who=holding, place=place) if place else holding


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
    words = _WORDS["zh" if language.startswith("zh") else "en"]
    return [words["worker"].format(pid=group.worker), *lines]


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


def _how(stacks: StallStacks) -> str:
    if stacks.why == "diverged":
        everybody = sum(len(group.ranks) for group in stacks.groups)
        return "apart" if len(stacks.odd) == everybody else "diverged"
    return "one" if len(stacks.odd) == 1 else "many"
