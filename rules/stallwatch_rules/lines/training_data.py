"""Recognize lines that show training data rather than messages from the run.

Trainers print samples, prompts, and completions. Such text can also mention failures. For example, datasets
about programming contain many error messages.
"""

from __future__ import annotations

from stallwatch_rules.hints import may_hold
from stallwatch_rules.text.lazy import lazy

_NAMES = (
    r"prompts?|responses?|completions?|questions?|answers?|instructions?|quer(?:y|ies)|chosen|rejected|samples?"
    r"|examples?|generat(?:ed|ions?)|predictions?|references?|ground[ _]truth|user|assistant|human|gpt"
    r"|inputs?|decoded(?: (?:inputs?|labels?|text))?|labels?"
)
#: The name of a kind of training data with only a separator after it: ``prompt: …``, ``[rank0] Response 3:
#: …``, ``[INPUT] …``.
_NAMED = lazy(
    rf"(?i)(?:\[?20\d\d-\d\d-\d\d[ T][\d:.,]{{8,18}}Z?\]?\W{{1,3}})?(?:(?:INFO|DEBUG)\W{{1,4}})?"
    rf"\W{{0,4}}(?:(?:rank ?\d+|step ?\d+|eval(?:uation)?|val(?:idation)?)\W{{1,4}}){{0,3}}(?:{_NAMES})"
    r"(?: text| tokens| ids)?"
    r"(?: ?[#\[(]?\d+[\])]?)?(?:\] |\W{0,2}[:=|] ?)"
)
#: A record of a dataset in the form of JSON or of a printed Python dictionary.
_RECORD = lazy(
    r"""[^{]{0,40}\{\W{0,3}["'](?:messages|conversations?|role|from|prompt|completion|instruction|question|query"""
    r"""|chosen|text|input|content|problem)["']: ?["'\[]"""
)
#: Keys that loggers use. A record with such a key belongs to the log if it has fewer than two keys of
#: training data. For example, a record of loguru begins with "text".
_LOGGED = lazy(
    r"""["'](?:level|levelname|severity|lvl|record|time|timestamp|ts|asctime|rank|msg|logger)["']: ?[^\s,}]"""
)
_FIELD = lazy(
    r"""["'](messages|conversations?|role|from|value|prompt|completion|instruction|question|answer|query|response"""
    r"""|chosen|rejected|text|input|output|content|problem|solution)["']: ?["'\[]"""
)
#: Marks that chat templates and reasoning models put around text.
_MARKS = lazy(
    r"<\|(?:im_start|im_end|user|assistant|eot_id|start_header_id|endoftext)\|>|</?think>|\[/?INST\]"
)
#: Requests and responses in the form in which inference servers log them: vLLM (``entrypoints/logger.py``)
#: and SGLang (``managers/tokenizer_manager.py``).
_SERVED = lazy(
    r"\b(?:Received request|Request) \S{1,80}(?: details)?: prompt: "
    r"|\bGenerated response \S{1,80}(?: \([^)]{1,40}\))?: output: "
    r"|\b(?:Receive|Finish): obj=GenerateReqInput\("
)
# Each match of ``_MARKS`` or ``_SERVED`` contains one of these strings.
_MARK_WORDS = ("<|", "think>", "INST]")
_SERVED_WORDS = ("prompt: ", "output: ", "GenerateReqInput(")
_HEAD = 200  # number of characters at the start of a server's line that show the kind of the line
#: The start of an exception. Its message can contain a mark from ``_MARKS``, but the exception is not
#: training data.
_RAISED = lazy(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b")


def is_training_data(text: str) -> bool:
    """Return whether a line shows training data. An error in such a line did not occur in the run."""
    begins = _NAMED.match(text) or _RECORD.match(text)
    if begins and not ("{" in begins[0] and _is_logged(text)):
        return True
    if may_hold(text, _SERVED_WORDS) and _SERVED.search(text, 0, _HEAD):
        return True
    return may_hold(text, _MARK_WORDS) and _MARKS.search(text) is not None and _RAISED.match(text) is None


def _is_logged(text: str) -> bool:
    """Return whether a logger wrote the JSON in a line. Otherwise, the JSON is from a dataset."""
    return _LOGGED.search(text) is not None and len(set(_FIELD.findall(text))) < 2
