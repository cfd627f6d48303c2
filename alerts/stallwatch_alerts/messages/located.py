"""The message that follows a stall's first one: where the ranks are, and which of them hold up the others."""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_alerts.messages.compose import TITLE_LIMIT, Message
from stallwatch_alerts.messages.remedies import remedy
from stallwatch_alerts.neutral import neutralise, shorten
from stallwatch_exporter.incident import Incident
from stallwatch_rules.stacks.kinds import is_library
from stallwatch_rules.stacks.records import Frame, StallStacks
from stallwatch_rules.stacks.words import sentence
from stallwatch_rules.text.digest import fold_ranks

_SENTENCE_LIMIT = 700
_INNERMOST, _OWN, _FRAME_LIMIT = 3, 2, 120  # frames that are shown: of any code, and of the user's
_GAP = "…"
_WORDS = {
    "en": {
        "one": "rank {ranks} holds up the run",
        "many": "ranks {ranks} hold up the run",
        "diverged": "{which} {ranks} went another way than the others",
        "apart": "ranks {ranks} went different ways",
        "none": "where its ranks stand",
        "file": "All stacks: {file} in the run's folder",
    },
    "zh": {
        "one": "rank {ranks} 拖住了任务",
        "many": "rank {ranks} 拖住了任务",
        "diverged": "rank {ranks} 与其他 rank 走了不同的路径",
        "apart": "rank {ranks} 走了不同的路径",
        "none": "各 rank 停在哪里",
        "file": "全部调用栈：任务目录中的 {file}",
    },
}


def stage(incident: Incident) -> str:
    """What a change is about, and is told once: ``open``, ``located``, ``resolved`` or ``ended``."""
    standing = incident.standing
    return "located" if standing == "open" and incident.stacks is not None else standing


def render_located(incident: Incident, stacks: StallStacks, language: str) -> Message:
    """The message of a stall whose ranks have told where they are."""
    words = _WORDS["zh" if language.startswith("zh") else "en"]
    which = "rank" if len(stacks.odd) == 1 else "ranks"
    title = words[_about(stacks)].format(ranks=fold_ranks(stacks.odd), which=which)
    blocks = [neutralise(sentence(stacks, language), _SENTENCE_LIMIT)]
    if stacks.groups and (stacks.odd or len(stacks.groups) == 1):  # the odd ones come last
        frames = _telling(stacks.groups[-1].frames)
        blocks.append("\n".join(f"    {neutralise(frame, _FRAME_LIMIT)}" for frame in frames))
        blocks.append(remedy(stacks, language))
    if stacks.file:
        blocks.append(words["file"].format(file=neutralise(stacks.file, 80)))
    head = f"[{neutralise(incident.run, 80)}] {title}"
    return Message(shorten(head, TITLE_LIMIT), "\n\n".join(block for block in blocks if block))


def _telling(frames: Sequence[str]) -> list[str]:
    """Of a stack, outermost first: its end, and who of the user's own code called it."""
    innermost = len(frames) - _INNERMOST
    own = [at for at, frame in enumerate(frames) if not is_library(_frame(frame))]
    shown = sorted({*own[-_OWN:], *range(max(0, innermost), len(frames))})
    told: list[str] = []
    for before, at in zip([None, *shown], shown, strict=False):
        if before is not None and at > before + 1:
            told.append(_GAP)
        told.append(frames[at])
    return told


def _frame(text: str) -> Frame:
    """Of ``file:line in function``."""
    place, _, function = text.partition(" in ")
    return Frame(place.rpartition(":")[0], 0, function)


def _about(stacks: StallStacks) -> str:
    if not stacks.odd:
        return "none"
    if stacks.why == "diverged":
        everybody = sum(len(group.ranks) for group in stacks.groups)
        return "apart" if len(stacks.odd) == everybody else "diverged"
    return "one" if len(stacks.odd) == 1 else "many"
