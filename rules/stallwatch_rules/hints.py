"""What a portion of lines may hold, told by a look at all of them at once: most portions hold nothing.

Reading is one Python step per line and reader; a word that stands nowhere in a portion saves the step for all
its lines. What a hint lets through is then looked at line by line, so portions decide about time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stallwatch_rules.environment import RUN_WORDS
from stallwatch_rules.records import Line

# A line of each kind holds one of its words.
TRACEBACK = ("call last", 'File "', "Error", "Exception", "Interrupt", "Exit", "Timeout", "error ---")
VERSION = ("ersion", "==", "eepspeed", "python3.", "torch", "dist-info", "Python ", "transformers", " info ")
LAUNCHER = ("Root Cause", "exitcode", "local_rank", "return code")
WARNING = ("arning", "WARN", "[W")


@dataclass(frozen=True)
class Hints:
    """Which kinds of lines a portion may hold."""

    traceback: bool
    version: bool
    launcher: bool
    warning: bool
    run: bool

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Hints:
        """Look at these lines."""
        text = "\n".join([line.text for line in lines])
        return cls(
            may_hold(text, TRACEBACK),
            may_hold(text, VERSION),
            may_hold(text, LAUNCHER),
            may_hold(text, WARNING),
            may_hold(text, RUN_WORDS),
        )


def may_hold(text: str, words: Sequence[str]) -> bool:
    """Whether one of the words stands in the text."""
    for word in words:  # noqa: SIM110 - any() costs three times as much on a short line
        if word in text:
            return True
    return False
