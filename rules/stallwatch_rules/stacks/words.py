"""What the ranks of a stall do, in one sentence for people: English or Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stallwatch_rules.stacks.records import Condition, Kind, StackGroup, StallStacks
from stallwatch_rules.text.digest import fold_ranks

_MOST_GROUPS = 4


class Words(msgspec.Struct, frozen=True):
    """Templates for ``str.format``.

    {who}: the ranks; {wait}, {is}, {has}: the verb for one or several; {what}: the operation; {place}: the
    user's line; {about}: what stands in brackets.
    """

    who: Mapping[bool, str]  #: whether it is a single rank
    all_of: str
    verbs: Mapping[bool, Mapping[str, str]]
    conditions: Mapping[Condition, str]
    kinds: Mapping[Kind, str]
    asides: Mapping[Kind, str]  #: beside the place, in the brackets
    busy: str
    locked_out: str
    held_by: str
    counted: str
    in_function: str
    more: str
    elsewhere: str
    brackets: str
    comma: str
    between: str
    end: str
    beside: str  #: {lead}, {title}


def sentence(stacks: StallStacks, language: str = "en") -> str:
    """``Ranks 0, 2 wait in all_gather (…); rank 1 is in torch.save (…).``; empty where nothing is known."""
    words = _ZH if language.startswith("zh") else _EN
    if not stacks.groups:
        return ""
    alone = len(stacks.groups) == 1 and not stacks.elsewhere and len(stacks.groups[0].ranks) > 1
    shown = _most_telling(stacks)
    told = [_clause(group, words, alone=alone) for group in shown]
    left_out = sum(len(group.ranks) for group in stacks.groups) - sum(len(group.ranks) for group in shown)
    if left_out:
        told.append(words.more.format(count=left_out))
    if stacks.elsewhere and not stacks.odd:
        told.append(words.elsewhere.format(count=stacks.elsewhere))
    text = words.between.join(told) + words.end
    return text[0].upper() + text[1:] if words is _EN else text


def lead(apart: Sequence[StackGroup], language: str = "en") -> str:
    """What these ranks do, before a title: ``Rank 1 is in DataLoader.__next__ (…)``; empty where none are."""
    words = _ZH if language.startswith("zh") else _EN
    text = words.between.join(_clause(group, words, alone=False) for group in apart[:_MOST_GROUPS])
    return text[:1].upper() + text[1:] if words is _EN else text


def behind(leading: str, title: str, language: str = "en") -> str:
    """The title behind such a lead, both in this language; the title alone where there is no lead."""
    words = _ZH if language.startswith("zh") else _EN
    return words.beside.format(lead=leading, title=title) if leading else title


def place_in(place: str, language: str) -> str:
    """A place in this language: ``train.py:42 in step``."""
    return place.replace(" in ", (_ZH if language.startswith("zh") else _EN).in_function)


def _most_telling(stacks: StallStacks) -> list[StackGroup]:
    """The largest groups of the others, and the odd ones, which come last."""
    odd = [group for group in stacks.groups if group.ranks[0] in stacks.odd][-_MOST_GROUPS + 1 :]
    rest = [group for group in stacks.groups if group.ranks[0] not in stacks.odd]
    return rest[: _MOST_GROUPS - len(odd)] + odd


def _clause(group: StackGroup, words: Words, *, alone: bool) -> str:
    single = len(group.ranks) == 1
    who = (words.all_of if alone else words.who[single]).format(ranks=fold_ranks(group.ranks))
    template = words.conditions.get(group.condition) or (
        words.busy if group.busy and group.place else words.kinds[group.kind]
    )
    place = group.place.replace(" in ", words.in_function)
    aside = words.asides.get(group.kind, "") if group.condition == "alive" else ""
    about = [aside] if aside and aside != group.what else []
    if group.note and group.kind == "lock":
        about.append(words.held_by.format(holder=group.note))
    if place and "{place}" not in template:
        about.append(place)
    if group.locked_out:
        about.append(words.locked_out)
    if group.collective is not None:
        about.append(words.counted.format(count=group.collective))
    brackets = words.brackets.format(words.comma.join(about)) if about else ""
    return template.format(who=who, what=group.what, place=place, about=brackets, **words.verbs[single])


_EN = Words(
    who={True: "rank {ranks}", False: "ranks {ranks}"},
    all_of="all ranks ({ranks})",
    verbs={
        True: {"is": "is", "wait": "waits", "has": "has"},
        False: {"is": "are", "wait": "wait", "has": "have"},
    },
    conditions={
        "ended": "{who} {has} ended{about}",
        "stopped": "{who} {is} stopped by a signal such as SIGSTOP{about}",
        "blocked": "{who} {is} blocked in the kernel by a disk, a network file system or a driver{about}",
    },
    kinds={
        "collective": "{who} {wait} in {what}{about}",
        "joining": "{who} {wait} in {what}{about}",
        "data": "{who} {is} in {what}{about}",
        "rollout": "{who} {is} in {what}{about}",
        "reward": "{who} {is} in {what}{about}",
        "save": "{who} {is} in {what}{about}",
        "load": "{who} {is} in {what}{about}",
        "lock": "{who} {wait} for a file lock{about}",
        "import": "{who} {is} importing modules{about}",
        "compile": "{who} {is} in {what}{about}",
        "debugger": "{who} {is} at a breakpoint and {wait} for input{about}",
        "network": "{who} {wait} for the network{about}",
        "process": "{who} {wait} for a child process{about}",
        "thread": "{who} {wait} for another thread or process{about}",
        "code": "{who} {is} at {place}{about}",
        "unknown": "{who} did not tell{about}",
    },
    asides={
        "joining": "joining the process group",
        "data": "data loading",
        "rollout": "generation",
        "reward": "reward function",
        "save": "checkpoint",
        "load": "loading",
    },
    busy="{who} {is} busy without progress at {place}{about}",
    locked_out="a call keeps the interpreter lock",
    held_by="held by {holder}",
    counted="{count} collectives joined",
    in_function=" in ",
    more="{count} more elsewhere",
    elsewhere="the other {count} ranks are on other hosts",
    brackets=" ({})",
    comma=", ",
    between="; ",
    end=".",
    beside="{lead}; beside that: {title}",
)
_ZH = Words(
    who={True: "rank {ranks} ", False: "rank {ranks} 都"},
    all_of="所有 rank（{ranks}）都",
    verbs={True: {"is": "", "wait": "", "has": ""}, False: {"is": "", "wait": "", "has": ""}},
    conditions={
        "ended": "{who}已经退出{about}",
        "stopped": "{who}被 SIGSTOP 之类的信号暂停{about}",
        "blocked": "{who}阻塞在内核中，等待磁盘、网络文件系统或驱动{about}",
    },
    kinds={
        "collective": "{who}在 {what} 中等待{about}",
        "joining": "{who}在 {what} 中等待{about}",
        "data": "{who}停在 {what}{about}",
        "rollout": "{who}停在 {what}{about}",
        "reward": "{who}停在 {what}{about}",
        "save": "{who}停在 {what}{about}",
        "load": "{who}停在 {what}{about}",
        "lock": "{who}在等待文件锁{about}",
        "import": "{who}正在导入模块{about}",
        "compile": "{who}停在 {what}{about}",
        "debugger": "{who}停在断点，等待输入{about}",
        "network": "{who}在等待网络{about}",
        "process": "{who}在等待子进程{about}",
        "thread": "{who}在等待其他线程或进程{about}",
        "code": "{who}停在 {place}{about}",
        "unknown": "{who}没能说明停在哪里{about}",
    },
    asides={
        "joining": "加入进程组",
        "data": "数据加载",
        "rollout": "生成",
        "reward": "奖励函数",
        "save": "保存检查点",
        "load": "加载",
    },
    busy="{who}一直在 {place} 中计算，但没有进展{about}",
    locked_out="有调用占着解释器锁",
    held_by="由 {holder} 持有",
    counted="已加入 {count} 次集合通信",
    in_function=" 的 ",
    more="另有 {count} 个 rank 在别处",
    elsewhere="其余 {count} 个 rank 在别的主机上",
    brackets="（{}）",
    comma="，",
    between="；",
    end="。",
    beside="{lead}；另外：{title}",
)
