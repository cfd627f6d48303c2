"""Provide the text of the pages in the user's language. Rule pages contain their own translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo

from stallwatch_dashboard import formats
from stallwatch_rules import locale
from stallwatch_rules.messages import Text

AREA = "dashboard"
LANGUAGES = {name: locale.templates(name, AREA)["language_name"] for name in locale.LANGUAGES}

Say = Callable[..., str]


class Seconds(float):
    """A duration that `Reader.say` formats in the units of the language."""


@dataclass(frozen=True)
class Reader:
    """The language, time zone, and time for which a page is drawn."""

    language: str = "en"
    zone: tzinfo | None = None
    now: float = 0.0  #: Unix seconds

    def say(self, key: str, *values: object) -> str:
        """Return the text for a key, with the values in place of the numbered placeholders."""
        shown = (self.seconds(value) if isinstance(value, Seconds) else value for value in values)
        return locale.templates(locale.language_of(self.language), AREA)[key].format(*shown)

    def render(self, text: Text) -> str:
        return locale.render(text, self.language)

    def clock(self, time: float | None) -> str:
        """Format a time of day. If the time is not today, add the date."""
        return formats.clock(time, self.zone, self.now)

    def seconds(self, value: float | None) -> str:
        """Format a duration in the units of the language."""
        return formats.seconds(value, self.language)
