"""One line that holds what two writers wrote: one went on where the other had not ended its line."""

from __future__ import annotations

import re

from stallwatch_rules.text.lazy import lazy

# After a progress bar's end, before another rank's prefix or a traceback.
_GLUED = lazy(
    r"(?<=\])(?<=it\]|/s\])(?=[^\s\]),])|(?<=[^\s:\]])(?=\[(?:rank|default)\d+\]:)"
    r"|(?<=[^\s\"'])(?=Traceback \(most recent call last\):)"
)
_BAR_ENDS = ("it]", "/s]")
# A message behind a bar that ends with numbers of its own, as Lightning's do; no other metrics are parted.
_BEHIND_POSTFIX = lazy(
    r"(\d/\d{1,15} \[[\d:]+<[^\[\]]{1,400}=[^\[\]]{1,80}\])(?=[`A-Z*])(?!.*(?i:\||loss|step|iter))"
)
# Python writes an exception's name, the colon and the message one after the other: of processes that fail at
# once comes "KeyErrorKeyError: : 'text'", or the message as often as the name.
_AT_ONCE = lazy(
    r"(?<![\w.])(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt))(?P<more>(?P=name)+)"
    r"(?:: ){2,}(?P<message>\S.*)"
)


def pieces(text: str) -> list[str]:
    """What each writer wrote; mostly the text itself."""
    if ": : " in text:
        text = _AT_ONCE.sub(_of_one, text, count=1)
    if ("]" in text and _may_be_glued(text)) or "Traceback" in text:
        return _GLUED.split(text)
    if "<" in text and "]" in text[:-1]:
        found = _BEHIND_POSTFIX.search(text)
        if found is not None:
            return [text[: found.end()], text[found.end() :]]
    return [text]


def _of_one(found: re.Match[str]) -> str:
    """What one of the writers meant to write."""
    name, message = found["name"], found["message"]
    writers = 1 + len(found["more"]) // len(name)
    once = message[: len(message) // writers]
    return f"{name}: {once if once * writers == message else message}"


def _may_be_glued(text: str) -> bool:
    """Whether something may stand behind a bar's end, or before a rank's prefix."""
    for word in _BAR_ENDS:
        if -1 < text.find(word) < len(text) - len(word):
            return True
    return text.find("[rank", 1) > 0 or text.find("[default", 1) > 0
