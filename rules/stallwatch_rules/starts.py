"""Detect the starts of a program in a log that contains several starts.

Appended runs, sweeps, and retries in one file have no common format, but each start begins with the same
lines, such as a banner, the arguments, and warnings during imports. Therefore, this module learns the lines
before the first step, called the *head* of a source. If several of these lines recur in order, or a mark of a
start appears (a shell prompt, a launcher's header, or a usage text), a start might begin. The start is
confirmed if the previous part of the log has ended, or if the step number decreases. Data loader workers that
reimport the script, headers of epochs, and ranks that print the same banner also repeat lines of the head,
but do not confirm a start.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stallwatch_rules.records import Line, Start
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.reading import SkippedCount

HEAD_LINES = 48  #: maximum number of distinct lines of a head that are learned
HEAD_REACH = 400  #: maximum number of first lines of a source that are searched for the head
FIRST_WITHIN = 16  #: maximum number of lines within which the head must begin
MOST_HEADS = 4  #: maximum number of heads of one source that are kept
ENOUGH = 3  #: minimum number of lines of the head that must recur
NEAR = 200  #: maximum number of lines within which the lines of the head must recur
NEXT = 30  #: maximum number of lines within which the next line of the head must follow
MOST_VAIN = 3  #: number of times that a line can recur without a start before it is removed from the head
FRESH = 3  #: number of lines outside of heads that a start near the end of a source must exceed
MOST_WAITING = 4000  #: number of lines after which a start is rejected if it is not confirmed
FIRST_KEPT, LAST_KEPT = 8, 56  #: numbers of first and last starts of a source that are kept
_LEAST = 5  # minimum number of characters of a line in a head, not counting digits

#: Text that differs between starts of a program: times, durations, sizes, processes, ports, and identifiers.
_CHANGING = lazy(
    r"\b\d{4}[-/]\d\d[-/]\d\d(?:[T ])?|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?|[IWEF]\d{4} "
    r"|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{6,}\b|\b0x[0-9a-fA-F]+|\d{5,}|:\d{4,5}\b|\[\d+\]|\bpid\D?\d+"
    r"|\b\d+(?:\.\d+)? ?(?:[mun]?s|sec|seconds|[KMGT]i?B|it/s|s/it)\b|20\d{6}[-_T]\d{4,6}"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2}\b"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b|\b20\d\d$"
)
#: A command that starts a program, as a shell echoes it after its prompt or because of ``set -x``.
_COMMAND = lazy(
    r"^(?:\+ |[\w.@:~/()\[\] -]{0,80}[$#] |nohup )(?:[A-Z_]+=\S* )*(?:env |exec |srun .{0,200}?|time )?"
    r"(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|mpirun|bash|sh) .{0,400}?([\w.-]+\.(?:py|sh))\b"
)
_USAGE = lazy(r"^usage: ([\w.-]+\.py)\b")
#: Lines that launchers print once for all their ranks (torch 2.13, distributed/run.py; deepspeed 0.19.8,
#: launcher/runner.py and launch.py).
_LAUNCHER = lazy(
    r"^\*{5,}$|Setting OMP_NUM_THREADS environment variable for each process"
    r"|\[(?:runner|launch)\.py:\d+:"
)


class HeadLine(msgspec.Struct):
    """A line at the beginning of a source, before the first step."""

    order: int
    text: str
    vain: int = 0  #: number of times that the line recurred without a start


class Head:
    """The first lines of a program's output. The keys of ``lines`` are the lines without their digits."""

    def __init__(self) -> None:
        self.lines: dict[bytes, HeadLine] = {}
        self.is_open = True
        self.first = self.last = 0  #: line numbers of the first and last line of the head
        self.doubled: set[bytes] = set()
        self._seen = 0

    def add(self, key: bytes, line: Line, *, ends: bool) -> bool:
        """Learn a line and return whether the line is new.

        If `ends` is true, the line is not learned, because it ends the output of a program's start. Examples
        of such lines are a step and a failure.
        """
        self._seen += 1
        if ends:
            self.is_open = not self.lines and self._seen < FIRST_WITHIN
            return False
        if self._seen >= HEAD_REACH:
            self.is_open = False
        if key in self.lines:
            self.doubled.add(key)
            return False
        if len(key) >= _LEAST and key.lower() != key.upper():  # ignore separators, such as a row of dashes
            self.lines[key] = HeadLine(len(self.lines), line.text)
            self.first, self.last = self.first or line.number, line.number
            self.is_open = self.is_open and len(self.lines) < HEAD_LINES
            return True
        return False

    @property
    def is_of_several(self) -> bool:
        """True if several processes printed these lines: the first line and most other lines recur."""
        began_again = any(line.order == 0 for key, line in self.lines.items() if key in self.doubled)
        return began_again and 2 * len(self.doubled) >= len(self.lines)

    @property
    def launched_at(self) -> int | None:
        """The index of the first line that a launcher printed, once for all its ranks."""
        launchers = (line.order for line in self.lines.values() if _LAUNCHER.search(line.text))
        return min(launchers, default=None)


def digitless_keys(lines: Sequence[Line], text: str) -> list[bytes]:
    """Return each line without its digits, as bytes. `text` contains all lines, joined."""
    keys = _without_figures(text).split(b"\n")  # removing characters from a str is slower
    return keys if len(keys) == len(lines) else [_without_figures(line.text) for line in lines]


def _without_figures(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")


def may_hold_marks(text: str) -> bool:
    """Return whether the text can contain a mark of a start, based on a fast search for short strings."""
    if "usage: " in text or "nohup" in text or text.startswith("+ "):
        return True
    return any(sign in text and word in text for sign, word in (("$", "$ "), ("#", "# "), ("+", "\n+ ")))


def is_same_line(line: str, other: str) -> bool:
    """Return whether two lines differ only in values that change from start to start.

    Example: ``Epoch 1/10`` and ``Epoch 2/10`` are different lines, but ``pid 4711`` and ``pid 812`` are the
    same line.
    """
    return line == other or _CHANGING.sub("", line) == _CHANGING.sub("", other)


class Mark(NamedTuple):
    """A line that shows that a program is being started, such as a command after a shell prompt."""

    program: str
    usage: bool = False  #: True if the program only printed its usage


def mark_of(text: str) -> Mark | None:
    """Return the mark of a start that a line contains, or ``None`` if it contains no mark."""
    if text.startswith("usage: "):
        found = _USAGE.match(text)
        return Mark(found[1], usage=True) if found is not None else None
    if text.startswith("nohup: ignoring input"):
        return Mark("nohup")
    found = _COMMAND.match(text)
    return Mark(found[1]) if found is not None else None


class Recurrence(msgspec.Struct):
    """The lines of a head that have recurred, in the order of the head."""

    head: Head
    met: dict[bytes, HeadLine] = {}
    others: int = 0  #: number of lines that recurred with different digits
    is_later: bool = False  #: True if a line that recurred with different digits names another epoch

    def see(self, key: bytes, line: Line) -> bool:
        """Compare a line with the head. Return whether the line is the next line of the head."""
        known = self.head.lines.get(key)
        if known is None or key in self.met:
            return False
        if not is_same_line(known.text, line.text):
            self.others += 1
            self.is_later = self.is_later or b"poch" in key
        elif known.order > max(self._orders, default=-1):
            self.met[key] = known
            return True
        return False

    @property
    def _orders(self) -> list[int]:
        return [line.order for line in self.met.values()]

    @property
    def is_likely(self) -> bool:
        """True if enough lines of the head recurred and only a few lines between them are missing."""
        orders = self._orders
        return len(orders) >= ENOUGH and 2 * len(orders) > max(orders) - min(orders)

    @property
    def is_at_the_top(self) -> bool:
        """True if lines from the beginning of the head recurred and no line names another epoch."""
        return min(self._orders) <= len(self.head.lines) // 4 and not self.is_later

    @property
    def is_whole(self) -> bool:
        """True if most lines of the head recurred, from its beginning and mostly with the same numbers.

        Lines that several processes, such as loader workers, printed before the first step are not counted.
        """
        once = self.head.lines.keys() - self.head.doubled
        met = len(once & self.met.keys())
        most = met > ENOUGH and 2 * met >= len(once)
        return most and self.is_at_the_top and self.others <= len(self.met)

    @property
    def is_launched(self) -> bool | None:
        """True if the lines that recurred begin with a line from a launcher or with an earlier line.

        The value is ``None`` if the head contains no lines from a launcher.
        """
        at = self.head.launched_at
        return None if at is None else min(self._orders) <= at


class Candidate:
    """A line at which another start of the program can begin, and the lines after it."""

    def __init__(self, line: Line, heads: Iterable[Head], mark: Mark | None) -> None:
        self.first = line
        self.mark = mark
        self.next_head = Head()
        self.lines: list[Line] = []
        self.asides: list[SkippedCount] = []
        self._recurrences = [Recurrence(head) for head in heads]
        self.fresh = 0  #: number of lines that are not in any head
        self._met_at = 0

    def see(self, key: bytes, line: Line) -> None:
        """Compare a line with all heads. At least one head must contain `key`, the line without digits."""
        for recurrence in self._recurrences:
            if recurrence.see(key, line):
                self._met_at = len(self.lines)

    @property
    def again(self) -> Recurrence:
        """The recurrence in which the most lines recurred."""
        return max(self._recurrences, key=lambda recurrence: len(recurrence.met))

    @property
    def is_likely(self) -> bool:
        """True if a start probably begins at the candidate line."""
        return self.mark is not None or self.again.is_likely

    @property
    def is_over(self) -> bool:
        """True if the decision must be made, because no more lines of a head are expected."""
        return len(self.lines) > NEAR or (len(self.lines) - self._met_at > NEXT and not self.is_likely)

    def forget(self) -> None:
        """If lines recurred several times but never at a start, remove these lines from the heads."""
        for recurrence in self._recurrences:
            for key, line in recurrence.met.items():
                line.vain += 1
                if line.vain >= MOST_VAIN:
                    recurrence.head.lines.pop(key, None)


class Part(msgspec.Struct):
    """The lines of a source since its newest start."""

    first: Line
    last: Line
    heads: list[Head]  #: heads of the first start and of the newest starts, newest last
    known: set[bytes] = set()  #: keys of the lines in ``heads``
    programs: set[str] = set()  #: programs named by marks of starts
    rank: int | None = None  #: the rank that is examined, in addition to lines without a rank
    busy: bool = True  #: True while the head is open, or while a start might have begun
    refused: bool = False  #: True if the part began with a usage text; usage texts resemble each other
    candidate: Candidate | None = None

    @property
    def head(self) -> Head:
        """The head of the newest start."""
        return self.heads[-1]

    def sign(self, key: bytes, line: Line, *, marked: bool) -> Candidate | None:
        """If the line is in a head or marks a start, return a candidate for a start."""
        if self.candidate is not None or not self._is_looked_at(line):
            return None
        mark = mark_of(line.text) if marked else None
        if mark is not None:
            started_before = mark.usage or mark.program in self.programs
            self.programs.add(mark.program)
            mark = mark if started_before else None
        if mark is None:
            known_lines = (head.lines[key] for head in self.heads if key in head.lines)
            again = any(is_same_line(known.text, line.text) for known in known_lines)
            if not again or (self.refused and line.text[:1].isspace()):
                return None
        return Candidate(line, self.heads, mark)

    def learn(self, key: bytes, line: Line, *, ends: bool) -> None:
        """Learn a line for the head of the newest start, unless `ends` shows that the line ends the head."""
        candidate = self.candidate
        looked_at = line.rank is None or self._is_looked_at(line)
        head = self.heads[-1] if candidate is None else candidate.next_head
        new = looked_at and head.is_open and head.add(key, line, ends=ends)
        if candidate is None:
            if new:
                self.known.add(key)
            self.busy = head.is_open
            return
        candidate.lines.append(line)
        if key not in self.known:
            candidate.fresh += 1
        elif looked_at and not ends:
            candidate.see(key, line)

    def begin(self) -> None:
        """Accept the candidate: a new part of the source starts at its line."""
        candidate, self.candidate = self.candidate, None
        assert candidate is not None
        self.refused = candidate.mark is not None and candidate.mark.usage
        self.first, self.busy = candidate.first, candidate.next_head.is_open
        self.heads = [*self.heads[:1], *self.heads[1:][2 - MOST_HEADS :], candidate.next_head]
        self.known = {key for head in self.heads for key in head.lines}

    def go_on(self) -> Candidate:
        """Reject the candidate and return the candidate. The current part of the source continues."""
        candidate, self.candidate = self.candidate, None
        assert candidate is not None
        candidate.forget()
        self.known = {key for head in self.heads for key in head.lines}
        self.busy = self.head.is_open
        return candidate

    def _is_looked_at(self, line: Line) -> bool:
        """Return whether the line has no rank, or has the one rank whose lines are examined for starts."""
        if line.rank is not None and self.rank is None:
            self.rank = line.rank
        return line.rank is None or line.rank == self.rank


class Starts:
    """The completed starts in one source. All starts are counted, but only the first and last are kept."""

    def __init__(self) -> None:
        self._first: list[Start] = []
        self._last: deque[Start] = deque(maxlen=LAST_KEPT)
        self.count = 0
        self.verdicts: Counter[tuple[str, str | None]] = Counter()

    def add(self, start: Start) -> None:
        self.count += 1
        start.number = self.count
        self.verdicts[start.verdict, start.rule] += 1
        (self._first if len(self._first) < FIRST_KEPT else self._last).append(start)

    @property
    def is_of_training(self) -> bool:
        """True if at least one of the starts is known to be a training job."""
        return any(verdict != "no-training-log" for verdict, _ in self.verdicts)

    def __iter__(self) -> Iterator[Start]:
        yield from self._first
        yield from self._last
