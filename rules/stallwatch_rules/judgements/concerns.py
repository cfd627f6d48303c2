"""Warnings from inside the ranks: what is about to fail, or goes wrong without a word, before a log says so.

A probe tells what it saw; here is what that means, and in which words. A warning is degrading while the run
goes on, fatal only when the failure itself came, and nothing where the run ended well without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stallwatch_rules.diagnosis.findings import Found
from stallwatch_rules.judgements.facts import Judgement
from stallwatch_rules.text.digest import counted
from stallwatch_rules.text.sentences import say

SEEN = "seen"  #: the capture that names the warning, a key of ``CONCERNS``
CHECKPOINT = "checkpoint"  #: the key of checkpoints that are broken
LATE_RANK = "late-rank"  #: the key of a rank that the others wait for in each step
NAN_LOSSES = "nan-losses"  #: the key of several losses in a row that are no numbers


class Concern(NamedTuple):
    """One kind of warning. What stands in braces is what the probe told."""

    seen: str  #: what was seen, as evidence
    means: str  #: what follows from it
    means_zh: str
    lasting: bool = False  #: it did harm, whether or not the run ended well
    fatal: bool = False  #: the run is lost, though it goes on


CONCERNS: Mapping[str, Concern] = {
    "eval-silent": Concern(
        "{module}{others} in evaluation mode in the backward pass at {place}",
        "Training goes on in evaluation mode: without dropout, and without gradient checkpointing where it"
        " depends on the mode. DeepSpeed 0.15.4 and newer do not say so.",
        "训练正在 eval 模式下继续：dropout 不生效，依赖训练模式的 gradient checkpointing 也不生效。"
        "DeepSpeed 0.15.4 及以后不会提示。",
        lasting=True,
    ),
    "eval-refused": Concern(
        "{module}{others} in evaluation mode in the backward pass at {place}",
        "This DeepSpeed refuses that: the backward pass is about to fail.",
        "当前 DeepSpeed 版本不允许这样做：这次 backward 即将失败。",
    ),
    "no-model": Concern(
        "deepspeed.initialize(model=None) at {place}",
        "It is about to fail: DeepSpeed asserts that there is a model.",
        "即将失败：DeepSpeed 会断言 model 不是 None。",
    ),
    "no-model-of": Concern(
        "deepspeed.initialize(model=None) at {place}; of {trainer}, {missing} is None",
        "It is about to fail: {trainer} has no {missing} and prepares it all the same.",
        "即将失败：{trainer} 的 {missing} 是 None，却仍被交给 DeepSpeed 准备。",
    ),
    "sum": Concern(
        "the loss holds a sum over {parameter}, empty when it was summed; backward at {place}",
        "The backward pass is about to fail: the gradient of a sum over a partitioned parameter is empty.",
        "这次 backward 即将失败：对已被切分（此刻为空）的参数求和，得到的梯度是空的。",
    ),
    "unwrapped-at-checkpoint": Concern(
        "{trainer}.save_model ({place}) hands a bare model to accelerate in place of the ZeRO-3 engine",
        "It will fail at the first checkpoint (save strategy: {saves}).",
        "将在保存第一个 checkpoint 时失败（保存策略：{saves}）。",
    ),
    "unwrapped-later": Concern(
        "{trainer}.save_model ({place}) hands a bare model to accelerate in place of the ZeRO-3 engine",
        "It will fail when the model is saved.",
        "将在保存模型时失败。",
    ),
    "unwrapped-now": Concern(
        "accelerate is asked at {place} for the weights of {model}, which is not the ZeRO-3 engine",
        "The save is about to fail: only the engine can hand out the weights.",
        "这次保存即将失败：只有 engine 才能给出完整权重。",
    ),
    "not-gathered": Concern(
        "{trainer} saves (strategy: {saves}) under ZeRO-3, and stage3_gather_16bit_weights_on_model_save is"
        " off",
        "The checkpoints will hold shards for each rank and no weights that from_pretrained can load.",
        "checkpoint 里只会有各 rank 的分片，没有 from_pretrained 能加载的权重。",
    ),
    "nothing-saved": Concern(
        "save_16bit_model({folder}) at {place}, and stage3_gather_16bit_weights_on_model_save is off",
        "Nothing was written: save_16bit_model returns False and says so at a level that is not shown.",
        "什么也没有写出：save_16bit_model 返回 False，而提示信息的日志级别通常不显示。",
        lasting=True,
    ),
    "checkpoint": Concern(
        "{path}: {fault}",
        "The checkpoint that was just written will not load as it is.",
        "刚写出的 checkpoint 无法正常加载。",
        lasting=True,
    ),
    NAN_LOSSES: Concern(
        "loss {value}, {count} times in a row",
        "The loss has been no finite number for {count} optimizer steps in a row: every further step makes"
        " the weights worse or does nothing.",
        "loss 已连续 {count} 个优化步不是有限数：继续训练只会让权重更糟，或毫无作用。",
        lasting=True,
        fatal=True,
    ),
    LATE_RANK: Concern(
        "rank {rank} begins its backward pass {later} s after the others (median of {count} steps)",
        "The other ranks wait for rank {rank} in each step: it begins its backward pass {later} s after them,"
        " {share} of a step (median of {count} steps).",
        "每一步其他 rank 都在等 rank {rank}：它开始 backward 的时间比其他 rank 晚 {later} 秒，"
        "占每步耗时的 {share}（{count} 步的中位数）。",
    ),
    "versions": Concern(
        "{fault}",
        "These versions are known not to fit together.",
        "已知这些版本之间不兼容。",
        lasting=True,
    ),
}


def evidence_of(captures: Mapping[str, str]) -> str:
    """What was seen, in a line; nothing for a warning that this version does not know."""
    concern = CONCERNS.get(captures.get(SEEN, ""))
    if concern is None:
        return ""
    others = captures.get("others", "0")
    more = f" and {counted(int(others), 'other module')} are" if others.isdigit() and int(others) else " is"
    return _filled(concern.seen, {**captures, "others": more})


def meaning_of(captures: Mapping[str, str], language: str = "en") -> str:
    """What follows from it, in a sentence."""
    concern = CONCERNS.get(captures.get(SEEN, ""))
    if concern is None:
        return ""
    return _filled(concern.means_zh if language.startswith("zh") else concern.means, captures)


def tells_of(note: str, seen: str) -> bool:
    """Whether a finding's note, in either language, is that of this warning."""
    concern = CONCERNS[seen]
    return any(_filled(means, {}) in note for means in (concern.means, concern.means_zh))


def judge_concerns(found: Iterable[Found], *, ended_well: bool, language: str) -> None:
    """Set the harm of rules of which there is nothing but a warning."""
    for one in found:
        hits = one.hits.values()
        if not hits or not all(SEEN in h.first.captures and SEEN in h.last.captures for h in hits):
            continue
        first = one.first
        captures = first.captures if first is not None else {}
        note = meaning_of(captures, language)
        concern = CONCERNS.get(captures.get(SEEN, ""))
        if ended_well and concern is not None and not concern.lasting:
            one.harm, one.note = "harmless", say("ended-well", language)
        else:
            one.set(Judgement("fatal" if concern is not None and concern.fatal else "degrading", note))
            one.judged = False  # nothing was concluded: it was seen


def _filled(template: str, captures: Mapping[str, str]) -> str:
    """The template with its captures, in one pass: what a capture says is no template."""
    return template.format_map(_Told(captures))


class _Told(dict[str, str]):
    """What was not told stands as such."""

    def __missing__(self, key: str) -> str:
        return "?"
