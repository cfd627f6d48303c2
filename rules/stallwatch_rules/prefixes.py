"""What launchers and loggers put before a line: which rank wrote it, and when.

Every function first looks at the cheapest thing that can say no, because it runs for each line.
"""

from __future__ import annotations

import re
from calendar import timegm

# A trailing blank belongs to the prefix, further ones are the line's own indentation (tracebacks).
_BRACKETED = re.compile(
    r"\[(?:[Rr]ank[ _]?|default|trainer|worker)(\d{1,6})\]: ?"  # torch, torchrun --tee
    r"|\[(?:\d+,)?(\d{1,6})\]<std(?:out|err)>: ?"  # mpirun --tag-output, horovod
)
_BARE = re.compile(r"(?:global[ _])?[Rr](?:ank|ANK)[ _]?(\d{1,6}): ?")
_RAY = re.compile(r"\([\w.:-]+(?: \w+=[\w.-]+)*? pid=\d+(?:, ?ip=[\w.:]+)?\) ?")
_JOURNALD = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s\[\]:]+\[\d+\]: ")
_KAGGLE = re.compile(r"\d+\.\d+s[ \t]+\d+[ \t]")
_COMPOSE = re.compile(r"[\w.-]+-\d+ +\| ")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]*: ?(?=\[(?:rank|default)\d)")  # pdsh, only where a rank follows
# DeepSpeed's log_dist, NCCL's watchdog; a process group other than the first has ranks of its own.
_NAMED_INSIDE = re.compile(r"\[(?:PG (?:ID )?0\b[^\]]{0,60} )?[Rr]ank ?(\d{1,6})\]")
_NAMED_FIRST = re.compile(r"[ \d.]{0,12}s? {0,2}[Rr]ank (\d{1,6}) ")  # "rank 3 step 17 …", "12.5s rank 3 …"


def take_rank(text: str) -> tuple[int | None, str]:
    """The rank that a prefix of the line names, and the line without its launchers' prefixes.

    The innermost prefix wins: ``[default3]:[rank11]: …`` is rank 11. A rank that is named inside the message
    (``[Rank 3] Watchdog caught …``) counts too, and stays in the text.
    """
    rank: int | None = None
    for _ in range(4):  # launchers nest, but not without end
        first = text[:1]
        if first == "[":
            found = _BRACKETED.match(text)
            if found is None:
                break
            rank = int(found[1] or found[2])
        elif first == "(":
            found = _RAY.match(text)
            if found is None:
                break
        elif first in "rRg":
            found = _BARE.match(text)
            if found is None:
                found = _HOST.match(text)
                if found is None:
                    found = _COMPOSE.match(text)
                    if found is None:
                        break
            else:
                rank = int(found[1])
        elif first.isdigit():
            found = _KAGGLE.match(text) or _HOST.match(text)
            if found is None:
                break
        elif first.isalpha():
            if "]:" in text:
                found = _JOURNALD.match(text) or _HOST.match(text)
            elif " | " in text:
                found = _COMPOSE.match(text)
            else:
                break
            if found is None:
                break
        else:
            break
        text = text[found.end() :]
    if rank is None and ("rank" in text or "Rank" in text):
        found = _NAMED_INSIDE.search(text, 0, 300) or _NAMED_FIRST.match(text)
        if found:
            rank = int(found[1])
    return rank, text


_LABEL = re.compile(r" {0,5}(\d{1,5}): ?")
_SURE_LABELS = 12  # so many labelled lines in a row, by far fewer tasks, are no numbered list
_FIRST_LINES = 1000  # srun labels all lines or none


class TaskLabels:
    """``srun --label`` puts the bare task number before every line.

    As much else looks so, it counts once many lines in a row have it and the numbers come again; the few
    lines before that stay without a rank.
    """

    def __init__(self) -> None:
        self.found = False
        self.searching = True
        self._lines = 0
        self._row: list[str] = []

    def take(self, text: str) -> tuple[int | None, str]:
        """The task that a label names, and the line without it."""
        label = _LABEL.match(text)
        if self.searching:
            self._search(label)
        if label is None or not self.found:
            return None, text
        return int(label[1]), text[label.end() :]

    def _search(self, label: re.Match[str] | None) -> None:
        self._lines += 1
        if label is None:
            self._row.clear()
        else:
            self._row.append(label[1])
            many = len(self._row) >= _SURE_LABELS
            self.found = many and 2 * len(set(self._row)) <= len(self._row)
        self.searching = not self.found and self._lines < _FIRST_LINES


_STAMP = re.compile(
    r"(?:\[?|\[[A-Z]+\|(?:[\w./-]+:\d+\] )?)"  # "[", "[INFO|", "[INFO|trainer.py:803] "
    r"(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r" ?(Z|[+-]\d\d:?\d\d(?!\d))?"
)
_AMERICAN = re.compile(r"(\d\d)/(\d\d)/(20\d\d) (\d\d:\d\d:\d\d)")  # transformers' examples


def own_time(text: str) -> float | None:
    """The time that the line's own logger wrote at its start; without a time zone it is taken as UTC."""
    first = text[:1]
    if first != "[" and not first.isdigit():
        return None
    found = _STAMP.match(text)
    if found:
        return unix_time(found[1], found[2], found[3])
    if text[2:3] == "/":
        found = _AMERICAN.match(text)
        if found:
            month, day, year, clock = found.groups()
            return unix_time(f"{year}-{month}-{day} {clock}", None, None)
    return None


def unix_time(stamp: str, fraction: str | None = None, zone: str | None = None) -> float | None:
    """``2026-11-20 23:56:32`` (or with ``T``), its fraction's digits and its zone, as Unix seconds."""
    try:
        fields = (
            int(stamp[:4]),
            int(stamp[5:7]),
            int(stamp[8:10]),
            int(stamp[11:13]),
            int(stamp[14:16]),
            int(stamp[17:19]),
        )
        if not (1 <= fields[1] <= 12 and 1 <= fields[2] <= 31 and fields[3] < 24 and fields[4] < 60):
            return None
        seconds = float(timegm(fields))
    except ValueError:
        return None
    if fraction:
        seconds += int(fraction) / 10 ** len(fraction)
    if zone and zone != "Z":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds += offset if zone[0] == "-" else -offset
    return seconds
