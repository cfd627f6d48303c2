"""Lines spelled anew on their way: a page's quotes and entities, a full-width colon, escaped line ends.

Forums and blogs set ``‘NoneType’ object`` for ``'NoneType' object``, and what is copied out of a page's
source has ``&#39;``; whoever types with a Chinese input method, or has a log translated, writes
``ValueError：``; a server's answer and a JSON log's record hold a traceback as one string. Read as they were,
all are what a program printed.
"""

from __future__ import annotations

import re

from stallwatch_rules.lines.datatext import is_data
from stallwatch_rules.text.lazy import lazy

COLON = "："
TYPESET = {"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u3000": " "}  #: a page's → as printed
_TYPESET = str.maketrans({**TYPESET, "\u200b": None, "\ufeff": None})
_IS_TYPESET = lazy("[‘’“”\u00a0\u3000\u200b\ufeff]")
_ENTITY = lazy(r"&(lt|gt|quot|apos|nbsp|#0?39|#x27|#34|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "quot": '"', "#34": '"', "nbsp": " ", "amp": "&"}
ESCAPED_END = "\\n"
MAX_PIECES = 200  #: lines of one string; what follows stays together

_NAMED = lazy(r"(\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning))：\s?", re.ASCII)
# Whoever types the colon by hand types the name by hand, too; "value error：0.02" is measured.
_TYPED = lazy(
    r"\s*(assertion|runtime|value|type|attribute|import) ?error：\s?(?=[^\W\d]|[\"'`(\[])",
    re.ASCII | re.IGNORECASE,
)
# What programs put an exception's text into. What a sandbox or a tool answered ("stderr", "output") is data.
_KEY = lazy(
    r"""['"](?:message|msg|detail|exception|exc_info|traceback|stack_?trace|error_message)['"]: ?"""
    r"""(?P<quote>['"])"""
)
_VALUE = {"'": re.compile(r"(?:[^'\\]|\\.)*"), '"': re.compile(r'(?:[^"\\]|\\.)*')}
_RAISED = lazy(
    r"(?:^|\\n)(?:Traceback \(most recent call last\):|(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed): )",
    re.ASCII,
)
_ESCAPE = lazy(r"\\([\\'\"t])")


def as_printed(text: str) -> str:
    """The line with the quotes and blanks that programs print, instead of a page's."""
    if not text.isascii() and _IS_TYPESET.search(text):
        text = text.translate(_TYPESET)
    if "&" in text and ";" in text:
        text = _ENTITY.sub(lambda found: _ENTITIES.get(found[1], "'"), text)
    return text


def with_ascii_colon(text: str) -> str:
    """The line with ``: `` behind the exception's name with which it begins."""
    found = _NAMED.match(text)
    if found is not None:
        return f"{found[1]}: {text[found.end() :]}"
    typed = _TYPED.match(text)
    if typed is None:
        return text
    return f"{typed[1].capitalize()}Error: {text[typed.end() :]}"


def unfolded(text: str) -> list[str]:
    """The lines of an exception that the line holds as a string, after what is before it; mostly the line."""
    found = _KEY.search(text)
    if found is None or is_data(text):
        return [text]
    value = _VALUE[found["quote"]].match(text, found.end())
    if value is None or ESCAPED_END not in value[0] or _RAISED.search(value[0]) is None:
        return [text]
    told = [_ESCAPE.sub(_unescaped, line) for line in value[0].split(ESCAPED_END, MAX_PIECES)]
    before = text[: found.start()]
    return [before, *told] if re.search(r"\w", before) else told


def _unescaped(found: re.Match[str]) -> str:
    return "\t" if found[1] == "t" else found[1]
