"""Provide advice for exceptions that no rule describes.

The file ``advice.json`` maps the types and messages of exceptions to advice. The advice shows the user
where to look. It does not name a cause, because the log does not show what the user's own code expected.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from stallwatch_rules.messages import Message, message
from stallwatch_rules.text.digest import shortened
from stallwatch_rules.text.display import shown

LONGEST = 80  #: maximum length, in characters, of a part of the message that the advice quotes


class Advice(msgspec.Struct, frozen=True):
    """An entry in ``advice.json``: a kind of exception and the advice for it."""

    id: str
    exceptions: str  #: regular expression for the exception's name without its modules
    #: Regular expression that must match part of the exception's message. The groups are parameters of the
    #: advice.
    message: str = ""
    #: True if the exception reports only that a command, notebook cell, or trial failed, and that command,
    #: cell, or trial printed its own exception.
    relays: bool = False


KINDS = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Advice, ...])


def advice_for(exception: str, words: str) -> Message | None:
    """Return the advice for an exception with this message, or ``None`` if no entry matches it.

    >>> advice_for("builtins.KeyError", "'image'")
    Message(id='diagnosis.advice-key', params={'key': "'image'"}, then=())
    """
    name = exception.rpartition(".")[2]
    for kind in KINDS:
        found = re.search(kind.message, words) if re.fullmatch(kind.exceptions, name) else None
        if found is not None:
            quoted = {key: shortened(shown(part or ""), LONGEST) for key, part in found.groupdict().items()}
            return message(f"diagnosis.advice-{kind.id}", **quoted)
    return None
