"""What stands before every line of a text, and in no list of prefixes: learnt from the text itself.

Log viewers, collectors and launchers put a pod's name, a stream, a time or a column before each line, in
forms without end. A logger does the same with its own messages, but not with the lines that go on under them:
where a traceback's frames or another program's stamps follow the same lead as all else, it is none of theirs.
A progress bar shows nothing of the kind, as a bar's own name stands before each of its states.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stallwatch_rules.lines.containers import record_of
from stallwatch_rules.lines.ranks import take_rank
from stallwatch_rules.lines.stamps import own_time
from stallwatch_rules.lines.wrapped import as_pasted
from stallwatch_rules.text.controls import TERMINAL_CODES
from stallwatch_rules.text.lazy import lazy

_LOOKED_AT = 300  # lines of the beginning
_BEGINNING = 64 * 1024  # bytes, in which they are
_PROBED = 12  # of them, each of which may show the lead
_LONGEST = 120  # characters of a lead
_NEARLY_ALL = 0.9  # of the lines have it
_LONG_NUMBER = 10  # digits, with which nothing is counted

_LEVEL = lazy(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SUCCESS)\b *")
_LEVELS = "\x01"  # stands for any of these, and the blanks that fill their column
_DIGITS = lazy(r"\d+")
_COLUMN = lazy(r"^ +(?=\d)")  # numbers that end in one column
_ENDS = lazy(r"\S (?=.)|\x01(?=\S)|\t|:(?=[^\s\d])|[|>\])}\"](?=\S)|[^\w\s] ?$")
# A number that a trainer counts or measures is no lead, nor is a record's beginning.
_MEASURED = lazy(
    r"(?i)(?<![a-z])(?:global_?)?(?:step|iter\w*|epoch|loss|batch|lr|it/s|reward)s?\W{0,8}(?:0|$)|[{}'%=]"
)
# Nor is the name of what a bar counts, of a phase that trains nothing or of a document, as a word of its own,
# or what Slurm says of the end of a job, before the time.
_NAMED = lazy(
    r"(?i)(?<![\w./-])(?:(?!train|deepspeed)[a-z]{2,}ing|eval\w*|valid\w*|val|tests?|dev|predict\w*|infer\w*"
    r"|generat\w*|sampl\w*|rollouts?|warm-?up|requests?|map|filter|prefill|decode|cancelled"
    r"|(?:docs?|notes?|faq|todo|tips?|examples?|cases?|issues?|answers?|questions?|[qa])[-_ #]?\d*)"
    r"(?![\w./-])"
)
_TELLING = lazy(r"[^\W_\x01]|[│┃|>]")  # a lead says something besides a level
# What begins a line and follows no logger's lead.
_STARTS = lazy(
    r'Traceback \(most recent call last\):|\s+File "[^"]+", line \d|\{\'(?:loss|eval_loss|train_runtime)\''
    r"|\[(?:rank|default)\d+\]:"
)
_STAMPED = lazy(  # nor does another stamp, unless it is a level that stands before it
    r"\[?20\d\d-\d\d-\d\d[ T]\d\d:\d\d|\[?[IWEF]\d{4} \d\d:\d\d:\d\d\.|(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:"
    r"|[\w.-]+:\d+:\d+ \[\d+\] NCCL "
)
_RANK = lazy(r"(?i)(?<![a-z])(?:mpi)?rank[ _:=-]{0,2}(\d{1,6})")
_STAMP = lazy(r"20\d\d[-/]\d\d[-/]\d\d[ T_-]\d\d:\d\d:\d\d|\d\d/\d\d/(?:20)?\d\d \d\d:\d\d:\d\d")


class Lead(NamedTuple):
    """What is taken off before each line."""

    form: re.Pattern[str]
    quoted: bool = False  #: it opens a quote that the line's end closes, as a table's cell
    counts: bool = False  #: its first number grows from line to line, as a list's does

    def take(self, text: str) -> tuple[str, str]:
        """The lead and the line behind it; no lead where the line has none."""
        found = self.form.match(text)
        if found is None:
            return "", text
        rest = text[found.end() :]
        if self.quoted:
            rest = rest.rstrip().removesuffix('"').replace('""', '"')
        return found[0], rest


def rank_in(lead: str) -> int | None:
    """The rank that a lead names."""
    found = _RANK.search(lead)
    return int(found[1]) if found is not None else None


def time_in(lead: str) -> float | None:
    """When the line was written, where its lead says it with the day."""
    at = _STAMP.search(lead)
    return own_time(lead[at.start() :]) if at is not None else None


def first_lines(head: bytes) -> tuple[str, ...]:
    """The first lines of a text that say something."""
    return tuple(_lines(head))


def sure_lead(head: bytes) -> Lead | None:
    """The lead of nearly all of a text's lines, where what follows it shows that it is none of a logger's."""
    lines, leads = _looked_at(head)
    for lead in leads:
        if not _needed(lead, lines):
            return None  # the prefixes that are known do it
        if _shown(lead, lines):
            return lead
    return None


def likely_leads(head: bytes) -> list[Lead]:
    """Leads of a short text that show nothing of the kind: whoever asks must have a reason to believe one.

    Of a single line none is likely: what somebody noted looks the same.
    """
    lines, common = _looked_at(head)
    leads = list(itertools.islice((lead for lead in common if _needed(lead, lines)), 3))
    return [lead._replace(counts=_counts(lead, lines)) for lead in leads]


@functools.lru_cache(maxsize=2)  # of a short text it is asked up to three times in a row
def _looked_at(head: bytes) -> tuple[tuple[str, ...], tuple[Lead, ...]]:
    lines = _lines(head)
    return tuple(lines), tuple(_common(lines))


def _lines(head: bytes) -> list[str]:
    """The first lines that say something, without what is taken off before a lead is looked for."""
    lines = []
    coded = b"\x1b" in head
    for text in as_pasted(head[:_BEGINNING]).decode("utf-8", "replace").split("\n"):
        if not text or text.isspace():
            continue
        record = record_of(text)
        text = text if record is None else record.text
        lines.append(TERMINAL_CODES.sub("", text) if coded or record is not None else text)
        if len(lines) == _LOOKED_AT:
            break
    return lines


def _masked(text: str) -> str:
    return _DIGITS.sub("0", _LEVEL.sub(_LEVELS, _COLUMN.sub("", text[:_LONGEST])))


def _common(lines: Sequence[str]) -> Iterator[Lead]:
    """The leads that nearly all of the lines have, the longest first."""
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
            if sum(one.startswith(lead) or one.rstrip() == bare for one in masked) < enough:
                missed.add(lead)
                break
            found[lead] = None
    for lead in sorted(found, key=len, reverse=True):
        if _TELLING.search(lead) or lead.isspace():
            yield Lead(_form(lead), lead.rstrip().endswith(',"'))


def _form(lead: str) -> re.Pattern[str]:
    bare = lead.rstrip()
    form = re.escape(bare).replace("0", r"\d+").replace(re.escape(_LEVELS), f"(?:{_LEVEL.pattern})")
    if bare.startswith("0"):
        form = " *" + form
    return re.compile(f"{form}(?:{re.escape(lead[len(bare) :])}|$)" if bare else re.escape(lead))


def _needed(lead: Lead, lines: Sequence[str]) -> bool:
    """Whether some lines' lead is more than the prefixes that are known anyway."""
    some = [taken for taken, _ in map(lead.take, lines) if taken]
    return any(take_rank(f"{taken}x")[1] != "x" for taken in some[:_PROBED])


def _counts(lead: Lead, lines: Sequence[str]) -> bool:
    """Whether its first number grows from line to line."""
    told = [_DIGITS.search(taken) for taken, _ in map(lead.take, lines) if taken]
    counted = [int(number[0]) for number in told if number is not None and len(number[0]) < _LONG_NUMBER]
    return len(counted) == len(told) and all(one < other for one, other in itertools.pairwise(counted))


def _shown(lead: Lead, lines: Sequence[str]) -> bool:
    """Whether lines go on behind the lead as none does behind a logger's."""
    for line in lines:
        taken, rest = lead.take(line)
        if not taken or taken.isspace():
            continue
        levelled = _LEVEL.search(taken) is not None
        if not levelled and (_STARTS.match(rest) or _STAMPED.match(rest)):
            return True
    return False
