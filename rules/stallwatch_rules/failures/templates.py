"""Store the lines of one stream that match no rule: one entry for each template, with its count.

To find the entry of a line, the table removes the line's digits and identifiers (``masking.skeleton``). A
table of a few hundred entries therefore covers logs of any length. The table keeps a checksum of each entry
that it drops, so that later lines with the same template never count as new.
"""

from __future__ import annotations

import re
import zlib
from typing import Literal

import msgspec

from stallwatch_rules.failures.raised import LinePosition
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.masking import skeleton

MAX_TEMPLATES = 256  #: maximum number of entries in each stream, because there can be thousands of streams
MAX_DROPPED = 8192  #: maximum number of checksums of dropped entries
MAX_TEXT = 400  #: maximum number of characters of a line that are read and stored

Level = Literal["error", "warning", "info"]
#: The level for each group of ``_STATED``.
_LEVELS: dict[str | None, Level] = {"info": "info", "warning": "warning", "error": "error"}
_LEVELS |= {"i": "info", "w": "warning", "e": "error"}

_MESSAGE = lazy(r"[A-Za-z]{3,}[^A-Za-z\n]{1,3}[A-Za-z]{2,}|[\u4e00-\u9fff]{4,}")
_NO_MESSAGE = lazy(r"\s*(?:[|+│├└╭╰{}\[\]()=*#<>~^-]{2}|raise \w)|.*(?:\d%\||[~^]{4,}\s*$)")
# The level that a logger prints near the start of a line. If a line has no such level, its words determine
# its level.
_STATED = lazy(
    r"(?<![A-Za-z_])(?:(?P<info>DEBUG|INFO|NOTICE|TRACE)|(?P<warning>WARN(?:ING)?)"
    r"|(?P<error>ERROR|CRITICAL|FATAL))(?![A-Za-z_])|^\[?(?:(?P<w>W)|(?P<e>[EF])|(?P<i>I))\d{3,4} \d\d:"
)
# Some programs replace a stream with a logger that has the stream's name (``StreamToLogger`` in FastChat and
# LLaVA). The level of this logger is the same for all lines of the stream.
_REDIRECTED = lazy(r"^.{0,60}\b(?:INFO|ERROR)\W{1,4}(?i:std(?:err|out))\b\W{1,4}")
_ERROR = lazy(
    r"error|exception|fatal|critical|\bfail|abort|panic|\bkill|crash|corrupt|refused|denied|unreachable"
    r"|cannot|can't|could not|couldn't|unable to|not found|no such|time[d-]? ?out|invalid|broken|\bdead"
    r"|unhealthy|out of memory|mismatch|\bhung\b|\bhang|\blost\b|错误|失败|异常|超时|无法",
    re.IGNORECASE,
)
_NO_ERROR = lazy(r"\b(?:no|zero|0|without(?: any)?) (?:errors?|exceptions?|failures?)\b", re.IGNORECASE)
# TensorFlow and XLA print the first two messages with severity E if another of their plugins is also
# imported. torch prints the last message for each rejected kernel (``_inductor/select_algorithm.py``,
# ``autotune_process.py``).
_WITHOUT_EFFECT = lazy(
    r"Unable to register cu(?:DNN|BLAS|FFT) factory|computation placer already registered"
    r"|_inductor/(?:select_algorithm|autotune_process)\.py:\d+\] "
)
# Words of lines that programs, experiment trackers, and schedulers print when a run ends.
_ENDING = lazy(
    r"(?i)\b(?:exit|quit|shut|terminat|stopp|clean|destroy|clos(?:e|ing)|finish|finali[sz]|complet|end(?:ed|ing|s)\b"
    r"|done\b|sav(?:e|ing)|upload|sync|flush|releas|free|disconnect|leav|summar|history|total\b|elapsed|time\b"
    r"|statistics|wandb|swanlab|mlflow|clearml|comet|neptune|nccl|slurm|job|state\b|cluster\b|user|cores?\b|cpu"
    r"|memory|node)"
)
# Advice such as "try using … instead" or "consider falling back to …" does not state that the program
# continued, and "cannot fall back to …" states the contrary.
_FALLBACK = lazy(
    r"(?i)(?:[^\s\w] *|\b(?:warn|warning|is|are|be|now|so|and) )using\b.{1,80}\binstead\b"
    r"(?! (?:may|might|can|could|would|should)\b)"
    r"|(?<!\b(?:not|can|try) )(?<!\bto )(?<!\bcannot )(?<!n't )(?<!\bwithout )(?<!\bconsider )"
    r"\b(?:fall(?:s|ing)? ?back|fell back|defaulting) to\b"
)
_WARNING = lazy(r"warn|deprecat|retry|retries|slow|skipp|\bmissing|unexpected|警告|重试", re.IGNORECASE)


class Template(msgspec.Struct):
    """The lines of one stream that differ from each other only in digits and identifiers."""

    first: Line  #: the first line, with its text truncated
    last: Line  #: the latest line, with its text truncated
    count: int
    level: Level
    advances: int  #: number of training steps in the stream before the first line
    step: int | None  #: number of the last training step before the first line
    index: int  #: number of lines in the stream before the first line
    last_index: int
    _works: bool | None = None

    @property
    def reports_work(self) -> bool:
        """True if the lines report neither a problem nor the end of a program."""
        if self._works is None:
            self._works = self.level == "info" and _ENDING.search(self.first.text) is None
        return self._works


class TemplateTable(msgspec.Struct):
    """The lines of one source and rank that match no rule, stored in bounded memory."""

    entries: dict[str, Template] = {}
    dropped: set[int] = set()
    #: True if lines were skipped or entries were dropped. In this case, known messages can seem new.
    partial: bool = False

    def again(self, line: Line, index: int, count: int = 1) -> Template | None:
        """If the template of a line is in the table, count the line, and return the entry.

        `index` is the position of the line in its stream.
        """
        entry = self.entries.get(skeleton(line.text[:MAX_TEXT]))
        if entry is not None:
            entry.count += count
            entry.last_index = index
            entry.last = _cut(line)
        return entry

    def add(self, line: Line, mark: LinePosition, count: int = 1) -> Template | None:
        """Count a line, and return its entry. If the line's template is not in the table, add an entry.

        `count` is greater than 1 if the line represents several lines with the same template. The result is
        None if the line is not a message.
        """
        if (known := self.again(line, mark.index, count)) is not None:
            return known
        if not looks_like_message(line.text):
            return None
        key = skeleton(line.text[:MAX_TEXT])
        line = _cut(line)
        # If the entry of a template was dropped earlier, the template does not count as new.
        advances = -1 if zlib.crc32(key.encode()) in self.dropped else mark.advances
        entry = self.entries[key] = Template(
            line, line, count, level_of(line.text), advances, mark.step, mark.index, mark.index
        )
        if len(self.entries) > MAX_TEMPLATES:
            self._drop()
        return entry

    def merge(self, later: TemplateTable) -> None:
        """Add the entries of a table that was read from a later part of the same stream."""
        for key, entry in later.entries.items():
            known = self.entries.get(key)
            if known is None:
                self.entries[key] = entry
            else:
                known.count += entry.count
                known.last, known.last_index = entry.last, entry.last_index
        self.dropped |= later.dropped
        self.partial = self.partial or later.partial
        while len(self.entries) > MAX_TEMPLATES:
            self._drop()

    def _drop(self) -> None:
        """Drop the half of the entries whose latest lines are the oldest."""
        ordered = sorted(self.entries.items(), key=lambda item: (item[1].last_index, item[1].index))
        for key, _ in ordered[: len(ordered) // 2]:
            del self.entries[key]
            if len(self.dropped) < MAX_DROPPED:
                self.dropped.add(zlib.crc32(key.encode()))
            else:
                self.partial = True


def looks_like_message(text: str) -> bool:
    """Return whether a line is a message, rather than numbers, a table, or a progress bar."""
    head = text[:MAX_TEXT]
    return _MESSAGE.search(head) is not None and _NO_MESSAGE.match(head) is None


def level_of(text: str) -> Level:
    """Return the level of a line from its logger prefix, or from its words if the prefix has no level."""
    text = _without_redirect(text)
    if (level := _stated_level(text)) is not None:
        return level
    if mentions_error(text):
        return "error"
    return "warning" if _WARNING.search(text) else "info"


def mentions_error(text: str) -> bool:
    """Return whether the words of a text mention an error, regardless of the text's level.

    Words such as ``No errors found`` do not count.
    """
    return _ERROR.search(text) is not None and _ERROR.search(_NO_ERROR.sub("", text)) is not None


def _without_redirect(text: str) -> str:
    return _REDIRECTED.sub("", text, count=1)


def _stated_level(text: str) -> Level | None:
    found = _STATED.search(text[:120])
    return _LEVELS[found.lastgroup] if found is not None else None


def states_info(text: str) -> bool:
    """Return whether a logger's prefix marks the line as neither a warning nor an error."""
    return _stated_level(_without_redirect(text)) == "info"


def states_error(text: str) -> bool:
    """Return whether a logger's prefix marks the line as an error.

    Words such as "error" do not count, because they can be part of advice.
    """
    return _stated_level(_without_redirect(text)) == "error" and not _WITHOUT_EFFECT.search(text)


def states_level(text: str) -> bool:
    """Return whether `text` begins with a logger's prefix that contains a level."""
    return _stated_level(text) is not None


def states_fallback(text: str) -> bool:
    """Return whether a logger's warning states what the program uses instead of the part that failed."""
    text = _without_redirect(text)
    return _stated_level(text) == "warning" and _FALLBACK.search(text) is not None


def _cut(line: Line) -> Line:
    return line if len(line.text) <= MAX_TEXT else msgspec.structs.replace(line, text=line.text[:MAX_TEXT])
