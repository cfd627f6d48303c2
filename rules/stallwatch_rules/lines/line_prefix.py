"""Find an unknown prefix that all lines of a log have in common.

Log viewers, collectors, and launchers put the name of a Pod, a stream, a time, or a column in front of each
line, in many formats. In contrast, a logger adds its prefix only to the first line of each message. If the
frames of a traceback, or lines with the timestamps of another program, have the same prefix as all other
lines, the prefix is not a logger's prefix. A progress bar is not evidence, because its description precedes
each of its states.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stallwatch_rules.lines.containers import record_of
from stallwatch_rules.lines.ranks import take_rank
from stallwatch_rules.lines.stamps import time_of_line
from stallwatch_rules.text.controls import TERMINAL_CODES
from stallwatch_rules.text.lazy import lazy

_MOST_LINES = 300  # maximum number of first lines to examine
_BEGINNING = 64 * 1024  # number of bytes that are searched for the first lines
_PROBED = 12  # approximate number of lines from which candidates for the prefix are taken
_LONGEST = 120  # maximum length of a prefix, in characters
_NEARLY_ALL = 0.9  # minimum share of lines that must have the prefix

_LEVEL = lazy(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS)\b *")
_LEVELS = "\x01"  # placeholder for any log level and the spaces that pad its column
_DIGITS = lazy(r"\d+")
_COLUMN = lazy(r"^ +(?=\d)")  # spaces that right-align numbers
_ENDS = lazy(r"\S (?=.)|\x01(?=\S)|\t|:(?=[^\s\d])|[|>\])}\"](?=\S)|[^\w\s] ?$")
# A trainer's counter or metric cannot be part of a prefix. The start of a record cannot be part of a prefix
# either.
_MEASURED = lazy(
    r"(?i)(?<![a-z])(?:global_?)?(?:step|iter\w*|epoch|loss|batch|lr|it/s|reward)s?\W{0,8}(?:0|$)|[{}'%=]"
)
# Words that cannot be part of a prefix: the description of a progress bar, a phase other than training, a
# document, and "CANCELLED". The last word precedes the time in the Slurm message that a job was canceled.
_NAMED = lazy(
    r"(?i)(?<![\w./-])(?:(?!train|deepspeed)[a-z]{2,}ing|eval\w*|valid\w*|val|tests?|dev|predict\w*|infer\w*"
    r"|generat\w*|sampl\w*|rollouts?|warm-?up|requests?|map|filter|prefill|decode|cancelled"
    r"|(?:docs?|notes?|faq|todo|tips?|examples?|cases?|issues?|answers?|questions?|[qa])[-_ #]?\d*)"
    r"(?![\w./-])"
)
_PREFIX_TEXT = lazy(r"[^\W_\x01]|[│┃|>]")  # text that every prefix must contain in addition to a level
# Starts of lines that never follow a logger's prefix.
_STARTS = lazy(
    r'Traceback \(most recent call last\):|\s+File "[^"]+", line \d|\{\'(?:loss|eval_loss|train_runtime)\''
    r"|\[(?:rank|default)\d+\]:"
)
_STAMPED = lazy(  # after a logger's prefix, a second timestamp follows only if a level precedes it
    r"\[?20\d\d-\d\d-\d\d[ T]\d\d:\d\d|\[?[IWEF]\d{4} \d\d:\d\d:\d\d\.|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:"
    r"|[\w.-]+:\d+:\d+ \[\d+\] NCCL "
)
_RANK = lazy(r"(?i)(?<![a-z])(?:mpi)?rank[ _:=-]{0,2}(\d{1,6})")
_STAMP = lazy(r"20\d\d[-/]\d\d[-/]\d\d[ T_-]\d\d:\d\d:\d\d|\d\d/\d\d/(?:20)?\d\d \d\d:\d\d:\d\d")


class LinePrefix(NamedTuple):
    """A prefix to remove from each line."""

    form: re.Pattern[str]
    #: True if the prefix opens a quote that ends at the end of the line, as in a cell of a table.
    quoted: bool = False

    def take(self, text: str) -> tuple[str, str]:
        """Return the prefix of a line and the text after it.

        The prefix is empty if the line does not have the prefix.
        """
        found = self.form.match(text)
        if found is None:
            return "", text
        rest = text[found.end() :]
        if self.quoted:
            rest = rest.rstrip().removesuffix('"').replace('""', '"')
        return found[0], rest


def rank_in(lead: str) -> int | None:
    """Return the rank in a line prefix, or ``None`` if the prefix does not contain a rank."""
    found = _RANK.search(lead)
    return int(found[1]) if found is not None else None


def time_in(lead: str) -> float | None:
    """Return the time in a line prefix, or ``None`` if the prefix does not contain both a date and a time."""
    at = _STAMP.search(lead)
    return time_of_line(lead[at.start() :]) if at is not None else None


def certain_prefix(head: bytes) -> LinePrefix | None:
    """If nearly all lines have a prefix that is certainly not part of the messages, return the prefix.

    The prefix is certain if, in some line, it precedes text that never follows a logger's prefix.
    """
    lines, leads = _examined(head)
    for lead in leads:
        if not _needed(lead, lines):
            return None  # the removal of known prefixes is sufficient
        if _shown(lead, lines):
            return lead
    return None


def likely_prefixes(head: bytes) -> list[LinePrefix]:
    """Return prefixes that nearly all lines have but that might be part of the messages.

    The caller must verify these prefixes. A log with a single line has no likely prefix, because a note that
    a person writes can start in the same way.
    """
    lines, common = _examined(head)
    return list(itertools.islice((lead for lead in common if _needed(lead, lines)), 3))


# The two public functions are often called one after the other with the same text.
@functools.lru_cache(maxsize=2)
def _examined(head: bytes) -> tuple[tuple[str, ...], tuple[LinePrefix, ...]]:
    lines = first_lines(head)
    return tuple(lines), tuple(_common(lines))


def first_lines(head: bytes) -> list[str]:
    """Return the first lines of a log, excluding blank lines, container records, and terminal codes."""
    lines = []
    coded = b"\x1b" in head
    for text in _as_utf8(head[:_BEGINNING]).decode("utf-8", "replace").split("\n"):
        if not text or text.isspace():
            continue
        record = record_of(text)
        text = text if record is None else record.text
        lines.append(TERMINAL_CODES.sub("", text) if coded or record is not None else text)
        if len(lines) == _MOST_LINES:
            break
    return lines


def _as_utf8(head: bytes) -> bytes:
    """Convert text in any supported encoding and with any line ends to UTF-8 with line feeds."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        head = head.decode("utf-16", "replace").encode("utf-8", "replace")
    return head.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"").replace(b"\r\n", b"\n")


def _masked(text: str) -> str:
    return _DIGITS.sub("0", _LEVEL.sub(_LEVELS, _COLUMN.sub("", text[:_LONGEST])))


def _common(lines: Sequence[str]) -> Iterator[LinePrefix]:
    """Yield the prefixes that nearly all lines have in common, from the longest to the shortest."""
    if len(lines) < 2:
        return
    masked = [_masked(line) for line in lines]
    enough = max(2.0, _NEARLY_ALL * len(lines))
    found: dict[str, None] = {}
    missed: set[str] = set()
    for probe in masked[:: max(1, len(masked) // _PROBED)]:
        for end in sorted({at.end() for at in _ENDS.finditer(probe, 0, _LONGEST)}):
            lead = probe[:end]
            if lead in found:
                continue
            if lead in missed or _MEASURED.search(lead) or _NAMED.search(lead):
                break
            bare = lead.rstrip()
            if sum(line.startswith(lead) or line.rstrip() == bare for line in masked) < enough:
                missed.add(lead)
                break
            found[lead] = None
    for lead in sorted(found, key=len, reverse=True):
        if _PREFIX_TEXT.search(lead) or lead.isspace():
            yield LinePrefix(_form(lead), lead.rstrip().endswith(',"'))


def _form(lead: str) -> re.Pattern[str]:
    bare = lead.rstrip()
    form = re.escape(bare).replace("0", r"\d+").replace(re.escape(_LEVELS), f"(?:{_LEVEL.pattern})")
    if bare.startswith("0"):
        form = " *" + form
    return re.compile(f"{form}(?:{re.escape(lead[len(bare) :])}|$)" if bare else re.escape(lead))


def _needed(lead: LinePrefix, lines: Sequence[str]) -> bool:
    """Return whether the prefix contains text that is not part of the known prefixes.

    Known prefixes are removed in any case.
    """
    prefixes = [prefix for prefix, _ in map(lead.take, lines) if prefix]
    return any(take_rank(f"{prefix}x")[2] != "x" for prefix in prefixes[:_PROBED])


def _shown(lead: LinePrefix, lines: Sequence[str]) -> bool:
    """Return whether, in some line, the prefix precedes text that never follows a logger's prefix."""
    for line in lines:
        prefix, rest = lead.take(line)
        if not prefix or prefix.isspace() or _LEVEL.search(prefix):
            continue
        if _STARTS.match(rest) or _STAMPED.match(rest):
            return True
    return False
