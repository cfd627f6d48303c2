"""Recognize text that can precede the metrics in a line: a logger's prefix, but not source code or prose."""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.text.lazy import lazy

# A word between separators, matched once: in parts, it could match in exponentially many ways.
_WORD = (
    r"(?=(\b(?:train(?:ing)?|epochs?|rank|gpu|worker|node|ppo|global|local|at|info|completed"
    r"|\d[\d-]*T\d[\d:.,]*(?:Z|\+\d\d:?\d\d)?|\d[\d.]*s?)\b))"
)
# A logger's prefix, and words such as "epoch 3, rank 0".
_LEAD = lazy(
    r"(?:.{0,160}(?: - |>> ?|\| |\][: ]\s*|: |, |\t))?"
    r" {0,3}(?:(?:\[|" + _WORD + r"\1)(?:[\s:=：,，|/\[\]()-]|" + _WORD + r"\2)*)?",
    re.IGNORECASE,
)
# A logger's level, its name, or its source's file and line, if no bracket or dash ends them.
_STAMP = r"(?:[\[\dIWE][\d\s:.,TZ+/\[\]-]{0,60})?"
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\]?"
_LOGGER = lazy(
    _LEVEL + r":[\w.]{1,60}:\s{0,3}"  # Python's default format
    r"|" + _STAMP + r"(?:" + _LEVEL + r"[\s:]{1,10})?" + _STAMP
    + r"(?:[\w.]{1,40}:\s{0,3})?\[?(?:[\w-]{1,40}/){0,8}[\w-]{1,60}\.py:\d{1,6}\]?:?\s{1,3}(?:[-|]\s)?"
    r"|" + _STAMP + _LEVEL + r"\s{1,10}" + _STAMP + r"(?:__main__|root|\w{1,40}(?:\.\w{1,40}){1,6}):?\s{1,3}"
)  # fmt: skip
_CODE = lazy(r"""["'`{};#\\]|\((?!\d|train\))|\b(?:return|def|for|if|self)\b""")

# Text that marks the numbers after it as an evaluation's: a name alone in a bracket or between bars, or
# before a colon at the line's beginning. With more words, it may refer to the next evaluation, or to both.
_NAME = r"(?:eval(?:uat(?:e|ion|ing))?|val(?:id(?:at(?:e|ion|ing))?)?)"
_EVALUATION = lazy(
    rf"\[\s?{_NAME}\s?\]|(?:^|\|)\s{{0,3}}{_NAME}\s{{0,3}}\||(?:^|\]\s{{0,3}}){_NAME}:\s{{0,3}}$"
    # format of timm and DETR
    rf"|(?:^|[\]:-]\s{{1,3}})(?:test|{_NAME}):\s{{1,3}}\[\s{{0,9}}0{{1,9}}/0{{1,9}}\]",
    re.IGNORECASE,
)
_TRAINING = lazy(r"\btrain(?:ing)?\b", re.IGNORECASE)
# For a mean, a preceding word that is not part of a path is enough: "Test set: Average loss".
_EVALUATED = lazy(rf"(?<![\w/.-])(?:test(?:ing)?|dev|{_NAME})(?![\w/.-])", re.IGNORECASE)
# These words occur in lines about the whole run or about the best evaluation, which are no lines of metrics.
_SUMS_UP = lazy(
    r"\b(?:finish(?:ed)?|completed?|done|final|best|lowest|previous|sav(?:ing|ed)|early|improved)\b",
    re.IGNORECASE,
)

_ZEROED = bytes.maketrans(b"123456789", b"0" * 9)


def with_zeroed_digits(text: str) -> str:
    """Replace all digits in the text by zeros. (Doing so in bytes is ten times as fast.)"""
    return text.encode("utf-8", "surrogatepass").translate(_ZEROED).decode("utf-8", "surrogatepass")


def may_precede(before: str) -> bool:
    """Return whether a metric can follow this text. The digits of the text have no effect."""
    return not before or (len(before) <= 200 and _may_precede_zeroed(with_zeroed_digits(before)))


def evaluates(before: str) -> bool:
    """Return whether the text before a metric shows that an evaluation produced the metric."""
    return bool(before) and _evaluates_zeroed(with_zeroed_digits(before[-200:]))


def evaluates_mean(before: str) -> bool:
    """Return whether the text before a mean over many batches shows that an evaluation produced it."""
    return _EVALUATED.search(before) is not None and _TRAINING.search(before) is None


def is_aggregate(before: str) -> bool:
    """Return whether the text before a loss shows that the loss is not that of the current step."""
    return bool(before) and _SUMS_UP.search(before) is not None


@lru_cache(maxsize=1024)
def _evaluates_zeroed(before: str) -> bool:
    return _EVALUATION.search(before) is not None and _TRAINING.search(before) is None


@lru_cache(maxsize=1024)  # loggers' prefixes differ only in their digits
def _may_precede_zeroed(before: str) -> bool:
    if _CODE.search(before):
        return False
    logger = _LOGGER.match(before)
    return _LEAD.fullmatch(before, logger.end() if logger else 0) is not None or (
        logger is not None and _LEAD.fullmatch(before) is not None
    )
