"""Describe the warnings that the probe reports: imminent or silent failures that no log shows yet.

A probe reports an observation, and this module defines the meaning of the observation. A warning is degrading
while the run continues, fatal only if the failure itself occurred, and harmless if the run ended well without
the failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from stallwatch_rules.messages import Text, message
from stallwatch_rules.text.digest import counted

SEEN = "seen"  #: the capture that names the warning, a key of ``CONCERNS``
CHECKPOINT = "checkpoint"  #: the key of the warning about broken checkpoints
SLOW_RANKS = ("slow-rank", "imbalance-rank")  #: keys of the warnings about a rank that delays other ranks
NAN_LOSSES = "nan-losses"  #: the key of the warning about several NaN or infinite losses in a row


class Concern(NamedTuple):
    """One kind of warning. The message ``concern.<key>`` explains the consequence of the warning."""

    seen: str  #: template of the evidence, which is filled with the captures of the probe
    names: tuple[str, ...] = ()  #: the captures that the message needs
    lasting: bool = False  #: True if the harm remains even if the run ended well
    fatal: bool = False  #: True if the run cannot succeed, even if it continues


CONCERNS: Mapping[str, Concern] = {
    "eval-silent": Concern(
        "{module}{others} in evaluation mode in the backward pass at {place}", lasting=True
    ),
    "eval-refused": Concern("{module}{others} in evaluation mode in the backward pass at {place}"),
    "no-model": Concern("deepspeed.initialize(model=None) at {place}"),
    "no-model-of": Concern(
        "deepspeed.initialize(model=None) at {place}; of {trainer}, {missing} is None",
        names=("trainer", "missing"),
    ),
    "sum": Concern(
        "the loss contains a sum over {parameter}, which was empty when summed; backward at {place}"
    ),
    "unwrapped-at-checkpoint": Concern(
        "{trainer}.save_model ({place}) passes an unwrapped model to accelerate, not the ZeRO-3 engine",
        names=("saves",),
    ),
    "unwrapped-later": Concern(
        "{trainer}.save_model ({place}) passes an unwrapped model to accelerate, not the ZeRO-3 engine"
    ),
    "unwrapped-now": Concern(
        "accelerate gathers the weights of {model}, which is not the ZeRO-3 engine, at {place}"
    ),
    "not-gathered": Concern(
        "{trainer} saves (strategy: {saves}) under ZeRO-3, and stage3_gather_16bit_weights_on_model_save"
        " is off",
    ),
    "nothing-saved": Concern(
        "save_16bit_model({folder}) at {place}, and stage3_gather_16bit_weights_on_model_save is off",
        lasting=True,
    ),
    CHECKPOINT: Concern("{path}: {fault}", lasting=True),
    NAN_LOSSES: Concern(
        "loss {value}, at least {count} times in a row",
        names=("count",),
        lasting=True,
        fatal=True,
    ),
    **dict.fromkeys(
        SLOW_RANKS,
        Concern(
            "rank {rank} takes {share} longer than other ranks for its own part of a step ({count} steps)",
            names=("rank", "host", "share", "cost", "count"),
        ),
    ),
    "versions": Concern("{fault}", lasting=True),
}


def evidence_of(captures: Mapping[str, str]) -> str:
    """Return the probe's observation in one line, or "" if this version does not know the warning."""
    concern = CONCERNS.get(captures.get(SEEN, ""))
    if concern is None:
        return ""
    others = captures.get("others", "0")
    more = f" and {counted(int(others), 'other module')} are" if others.isdigit() and int(others) else " is"
    # The template is filled in one pass, because the text of a capture is not a template.
    return concern.seen.format_map(defaultdict(lambda: "?", {**captures, "others": more}))


def meaning_of(captures: Mapping[str, str]) -> Text:
    """Return the meaning of a warning for the run, or "" if this version does not know the warning."""
    seen = captures.get(SEEN, "")
    concern = CONCERNS.get(seen)
    if concern is None:
        return ""
    return message(f"concern.{seen}", **{name: captures.get(name, "?") for name in concern.names})
