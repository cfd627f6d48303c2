"""Represent the messages of Stallwatch as IDs with parameters. `locale` contains the words for each ID."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, TypeVar, Union

import msgspec
from msgspec.structs import replace

T = TypeVar("T")
PAGE = "text"  #: message ID of a rule page's text; the parameters contain the text in each language


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One or more sentences in a form that is independent of the language."""

    id: str  #: "area.key": the key of a template in `locale/<language>/<area>.json`
    params: dict[str, str | int | float | Message | list[str | Message]] = {}  #: parameters for the template
    then: tuple[Message, ...] = ()  #: the sentences that follow

    def __add__(self, other: Text) -> Message:
        """Return a message that consists of this message and another text. Empty text is ignored."""
        if isinstance(other, str):
            if other:
                raise TypeError(f"not a message: {other!r}")
            return self
        return replace(self, then=(*self.then, replace(other, then=()), *other.then))

    def __radd__(self, other: str) -> Message:
        """Support ``"" + message``. Raise `TypeError` if the left operand is not empty."""
        if other:
            raise TypeError(f"not a message: {other!r}")
        return self

    def has(self, *ids: str) -> bool:
        """Return whether one of the sentences in this message has one of these IDs."""
        return self.id in ids or any(sentence.id in ids for sentence in self.then)


#: A message, or text that has no translation: a log line, or a sentence that version 0.1 stored.
Text = Union[str, Message]  # noqa: UP007 - mypy and msgspec evaluate the type, even on Python 3.10


def message(id: str, /, **params: str | int | float | Message | list[str | Message]) -> Message:
    """Return a message with the given ID and parameters."""
    return Message(id, params)


def bilingual(english: str, chinese: str) -> Message:
    """Return a message that contains the text of a rule page in both languages.

    The text is stored in the message, because a later reader might not have the page.
    """
    return Message(PAGE, {"en": english, "zh": chinese or english})


def sentences(*texts: Text | None) -> Text:
    """Join strings and messages into one message, in order."""
    known = [bilingual(text, text) if isinstance(text, str) else text for text in texts if text]
    return reduce(add, known) if known else ""


def has(text: Text, *ids: str) -> bool:
    """Return whether `text` is a message and contains a sentence with one of these IDs."""
    return isinstance(text, Message) and text.has(*ids)


def without_sentence(text: T, id: str) -> T:
    """Return the text without the sentences that have this ID. The first sentence is always kept."""
    if not isinstance(text, Message):
        return text
    return replace(text, then=tuple(sentence for sentence in text.then if sentence.id != id))


def contains(text: Text, part: str) -> bool:
    """Return whether a string, or any parameter of a message, contains these characters."""
    if isinstance(text, str):
        return part in text
    return any(isinstance(value, (str, Message)) and contains(value, part) for value in text.params.values())


def with_params(text: T, **params: Any) -> T:
    """Return the text with new values for these parameters in every sentence that contains them."""
    if not isinstance(text, Message):
        return text
    known = {name: value for name, value in params.items() if name in text.params}
    then = tuple(with_params(sentence, **params) for sentence in text.then)
    return replace(text, params=text.params | known, then=then)
