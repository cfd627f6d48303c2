"""The words of the pages in the reader's language. Rule pages bring their own translations."""

from __future__ import annotations

from collections.abc import Callable

from stallwatch_rules import locale

AREA = "dashboard"
LANGUAGES = {one: locale.templates(one, AREA)["language_name"] for one in locale.LANGUAGES}

Say = Callable[..., str]


def speaker(language: str) -> Say:
    """Return `say(key, *values)`: the words of a key, with the values in the places that are numbered."""
    templates = locale.templates(locale.language_of(language), AREA)

    def say(key: str, *values: object) -> str:
        return templates[key].format(*values)

    return say
