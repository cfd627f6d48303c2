"""Find the hint words in a portion of lines by searching the joined lines once.

Most portions contain few of the words. Only these words are then searched for line by line, which saves one
Python operation per line for each of the other words. Therefore, the size of the portions affects only the
speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import AnyStr

import msgspec

from stallwatch_rules.failures.crashes import WORDS
from stallwatch_rules.failures.environment import RUN_WORDS
from stallwatch_rules.progress.activities import ACTIVITY_WORDS
from stallwatch_rules.progress.phases import SIGN_WORDS
from stallwatch_rules.progress.phases import WORDS as SERVING_WORDS
from stallwatch_rules.text.lazy import lazy

# Each line of a kind contains at least one word from that kind's tuple.
TRACEBACK = (
    *("call last", 'File "', "Error", "Exception", "Interrupt", "Exit", "Timeout", "error ---", *WORDS),
    *("never retrieved", "of asynchronous generator", "unhandled exception"),
    # Words in messages from programs that continue without the failed part.
    *("etrying", "kipping", "kipped", "gnoring", "gnored", "alling back", "rying again"),
)
VERSION = ("ersion", "==", "eepspeed", "python3.", "torch", "dist-info", "Python ", "transformers", " info ")
LAUNCHER = (
    "Root Cause",
    "exitcode",
    "local_rank",
    "exits successfully",
    "num_local_procs",
    "Killing subprocess",
    "Main process received",
    "return code",
    "noticed that process rank",
    "Process name:",
    "Exit code:",
    "will restart worker",
    "ChildFailedError:",
    "State:  ",
    "OOMKilled",
    "Limits:",
    "Requests:",
    "memory:  ",
)
WARNING = ("Warning:", "WARN", "[W", "W0", "W1")


# The name of a Python warning class, a logger's level as a separate word, or the prefix of glog lines (WMMDD,
# or [WMDD in torch). "learning_rate" and "[Worker 3]" do not match.
_WARNING = lazy(
    r"Warning:(?!\w)|(?<![A-Za-z0-9_])WARN(?:ING)?(?![A-Za-z0-9_])"
    r"|(?:^|[\s:])\[?W[01]?\d[0-3]\d \d\d:\d\d:"
)


_KINDS = (TRACEBACK, VERSION, LAUNCHER, WARNING, RUN_WORDS, SIGN_WORDS, SERVING_WORDS, ACTIVITY_WORDS)
_ZEROS = str.maketrans("123456789", "0" * 9)
_with_zeros = {word: word.translate(_ZEROS) for words in _KINDS for word in words if not word.isalpha()}


class Hints(msgspec.Struct, frozen=True):
    """The hint words that occur in a portion of lines, grouped by kind of line in the order of ``_KINDS``."""

    traceback: tuple[str, ...]
    version: tuple[str, ...]
    launcher: tuple[str, ...]
    warning: tuple[str, ...]
    run: tuple[str, ...]
    sign: tuple[str, ...]
    serving: tuple[str, ...]
    activity: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Hints:
        """Return the hint words in a portion's text. Lines that differ only in digits are searched once."""
        text = "\n".join(dict.fromkeys(text.translate(_ZEROS).split("\n")))
        return cls(
            *[tuple([word for word in words if _with_zeros.get(word, word) in text]) for words in _KINDS]
        )


def may_hold(text: AnyStr, words: Sequence[AnyStr]) -> bool:
    """Return whether the text contains one of the words."""
    for word in words:  # noqa: SIM110 - any() takes three times as long on a short line
        if word in text:
            return True
    return False


def is_warning(text: str) -> bool:
    """Return whether the line is a warning from a program."""
    return _WARNING.search(text) is not None
