"""Recognize text that can precede metrics: the prefix of a logger, but not source code or prose."""

from __future__ import annotations

import re
from functools import lru_cache

from stallwatch_rules.text.lazy import lazy

# A word between separators. The lookahead matches the word as a whole. If the expression could match parts of
# words, it could match text in exponentially many ways.
_WORD = (
    r"(?=(\b(?:train(?:ing)?|epochs?|rank|gpu|worker|node|ppo|global|local|at|info|completed"
    r"|\d[\d-]*T\d[\d:.,]*(?:Z|\+\d\d:?\d\d)?|\d[\d.]*s?)\b))"
)
# The prefix of a logger, and words such as "epoch 3, rank 0".
_LEAD = lazy(
    r"(?:.{0,160}(?: - |>> ?|\| |\][: ]\s*|: |, |\t))?"
    r" {0,3}(?:(?:\[|" + _WORD + r"\1)(?:[\s:=：,，|/\[\]()-]|" + _WORD + r"\2)*)?",
    re.IGNORECASE,
)
# The level or the name of a logger, or the file and line of its source code, without a bracket or dash at the
# end.
_STAMP = r"(?:[\[\dIWE][\d\s:.,TZ+/\[\]-]{0,60})?"
_LEVEL = r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL)\]?"
_LOGGER = lazy(
    _LEVEL + r":[\w.]{1,60}:\s{0,3}"  # default format of Python's logging module
    r"|" + _STAMP + r"(?:" + _LEVEL + r"[\s:]{1,10})?" + _STAMP
    + r"(?:[\w.]{1,40}:\s{0,3})?\[?(?:[\w-]{1,40}/){0,8}[\w-]{1,60}\.py:\d{1,6}\]?:?\s{1,3}(?:[-|]\s)?"
    r"|" + _STAMP + _LEVEL + r"\s{1,10}" + _STAMP + r"(?:__main__|root|\w{1,40}(?:\.\w{1,40}){1,6}):?\s{1,3}"
)  # fmt: skip
# The text in parentheses "(main.py 232)" is the location that the logger of Swin Transformer prints.
_CODE = lazy(r"""["'`{};#\\]|\((?!\d|train\)|\w{1,40}\.py \d)|\b(?:return|def|for|if|self)\b""")

# Text that shows that the numbers after the text are from an evaluation: a single name in brackets, between
# vertical bars, or before a colon at the start of the line. Text with more words can refer to the next
# evaluation, or to both training and evaluation.
_NAME = r"(?:eval(?:uat(?:e|ion|ing))?|val(?:id(?:at(?:e|ion|ing))?)?)"
_EVALUATION = lazy(
    rf"\[\s?{_NAME}\s?\]|(?:^|\|)\s{{0,3}}{_NAME}\s{{0,3}}\||(?:^|\]\s{{0,3}}){_NAME}:\s{{0,3}}$"
    # Format of timm and DETR.
    rf"|(?:^|[\]:-]\s{{1,3}})(?:test|{_NAME}):\s{{1,3}}\[\s{{0,9}}0{{1,9}}/0{{1,9}}\]",
    re.IGNORECASE,
)
_TRAINING = lazy(r"\btrain(?:ing)?\b", re.IGNORECASE)
# If the metric is a mean, a preceding word that is not part of a path is sufficient, as in "Test set: Average
# loss".
_EVALUATED = lazy(rf"(?<![\w/.-])(?:test(?:ing)?|dev|{_NAME})(?![\w/.-])", re.IGNORECASE)
# These words occur in lines about the whole run or about the best evaluation. Such lines are not metrics
# lines.
_SUMS_UP = lazy(
    r"\b(?:finish(?:ed)?|completed?|done|final|best|lowest|previous|sav(?:ing|ed)|early|improved)\b",
    re.IGNORECASE,
)
# The name of a printed dictionary that contains settings, such as the planned number of steps.
_SETTINGS = lazy(
    r"(?:\b|_)(?:config(?:uration)?s?|arg(?:ument)?s|(?:hyper[- ]?)?param(?:eter)?s|settings|options)"
    r"\W{0,4}$",
    re.IGNORECASE,
)

_ZEROED = bytes.maketrans(b"123456789", b"0" * 9)


def with_zeroed_digits(text: str) -> str:
    """Replace all digits in the text with zeros. Replacing bytes is ten times as fast as replacing text."""
    return text.encode("utf-8", "surrogatepass").translate(_ZEROED).decode("utf-8", "surrogatepass")


def may_precede(before: str) -> bool:
    """Return whether a metric can follow this text. The values of the digits in the text are ignored."""
    return not before or (len(before) <= 200 and _may_precede_zeroed(with_zeroed_digits(before)))


def evaluates(before: str) -> bool:
    """Return whether the text before a metric shows that the metric is from an evaluation."""
    return bool(before) and _evaluates_zeroed(with_zeroed_digits(before[-200:]))


def evaluates_mean(before: str) -> bool:
    """Return whether the text before a mean over many batches shows that the mean is from an evaluation."""
    return _EVALUATED.search(before) is not None and _TRAINING.search(before) is None


def is_aggregate(before: str) -> bool:
    """Return whether the text before a loss shows that the loss does not belong to the current step."""
    return bool(before) and _SUMS_UP.search(before) is not None


def names_settings(before: str) -> bool:
    """Return whether the text before a printed dictionary shows that the dictionary contains settings."""
    return _SETTINGS.search(before[-40:]) is not None


@lru_cache(maxsize=1024)
def _evaluates_zeroed(before: str) -> bool:
    return _EVALUATION.search(before) is not None and _TRAINING.search(before) is None


@lru_cache(maxsize=1024)  # the prefixes of a logger differ only in their digits
def _may_precede_zeroed(before: str) -> bool:
    if _CODE.search(before):
        return False
    logger = _LOGGER.match(before)
    return _LEAD.fullmatch(before, logger.end() if logger else 0) is not None or (
        logger is not None and _LEAD.fullmatch(before) is not None
    )
