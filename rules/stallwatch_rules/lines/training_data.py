"""Recognize lines that show training data instead of messages of the run.

Trainers print samples, prompts and completions. These texts can mention failures, too: data sets about
programming are full of error messages.
"""

from __future__ import annotations

from stallwatch_rules.text.lazy import lazy

_NAMES = (
    r"prompts?|responses?|completions?|questions?|answers?|instructions?|quer(?:y|ies)|chosen|rejected|samples?"
    r"|examples?|generat(?:ed|ions?)|predictions?|references?|ground[ _]truth|user|assistant|human|gpt"
    r"|inputs?|decoded(?: (?:inputs?|labels?|text))?|labels?"
)
#: ``prompt: …``, ``[rank0] Response 3: …``, ``[INPUT] …``: a name of data followed only by a separator.
_NAMED = lazy(
    rf"(?i)(?:\[?20\d\d-\d\d-\d\d[ T][\d:.,]{{8,18}}Z?\]?\W{{1,3}})?(?:(?:INFO|DEBUG)\W{{1,4}})?"
    rf"\W{{0,4}}(?:(?:rank ?\d+|step ?\d+|eval(?:uation)?|val(?:idation)?)\W{{1,4}}){{0,3}}(?:{_NAMES})"
    r"(?: text| tokens| ids)?"
    r"(?: ?[#\[(]?\d+[\])]?)?(?:\] |\W{0,2}[:=|] ?)"
)
#: A record of a data set, as JSON or as Python prints it.
_RECORD = lazy(
    r"""[^{]{0,40}\{\W{0,3}["'](?:messages|conversations?|role|from|prompt|completion|instruction|question|query"""
    r"""|chosen|text|input|content|problem)["']: ?["'\[]"""
)
#: A logger's own keys: a record with one of them and without a second name of data belongs to the log
#: (loguru's record begins with "text").
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
#: Requests and responses as inference servers log them: vLLM (``entrypoints/logger.py``) and SGLang
#: (``managers/tokenizer_manager.py``).
_SERVED = lazy(
    r"\b(?:Received request|Request) \S{1,80}(?: details)?: prompt: "
    r"|\bGenerated response \S{1,80}(?: \([^)]{1,40}\))?: output: "
    r"|\b(?:Receive|Finish): obj=GenerateReqInput\("
)
_HEAD = 200  # number of characters in which the start of a server's line shows what it contains
#: The start of an exception; its message may contain a text of ``_MARKS``, but is not training data.
_RAISED = lazy(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b")


def is_training_data(text: str) -> bool:
    """Return whether a line shows training data, so that an error in it did not occur in the run."""
    begins = _NAMED.match(text) or _RECORD.match(text)
    if begins and not ("{" in begins[0] and _is_logged(text)):
        return True
    if _SERVED.search(text, 0, _HEAD):
        return True
    return _MARKS.search(text) is not None and _RAISED.match(text) is None


def _is_logged(text: str) -> bool:
    """Return whether the JSON in a line was written by a logger, and is not from a data set."""
    return _LOGGED.search(text) is not None and len(set(_FIELD.findall(text))) < 2
