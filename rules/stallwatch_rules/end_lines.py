"""Write and read the line in a job's log in which an agent states how the command ended.

The line has the same words in every language, so reading it does not depend on the text of the report. The
watched program can also print such a line. Therefore, a line sets only facts about the end of its own run,
and each value must have a fixed format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from stallwatch_rules.endings import BY_SIGKILL, Ending, MemoryUse
from stallwatch_rules.messages import Message, Text, message
from stallwatch_rules.records import Line
from stallwatch_rules.stacks.spans import ranks_in, spans_of
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.stream import Key, StreamReading

OWN_LINE = "stallwatch:"  #: beginning of each line that Stallwatch prints

# If a step follows the end line after more than this number of lines, the run continued or was restarted.
# Closer lines might be from other hosts.
_LINES_AFTER = 100
_MOST_HOSTS = 1024
_MOST_RANKS = 200  # maximum number of characters in the list of ranks whose memory was measured
_NUMBER, _SIGNAL = r"\d{1,11}(?:\.\d)?", "SIG[A-Z0-9]{1,9}"
_STATED = lazy(
    rf"{OWN_LINE} ended at=(?P<at>{_NUMBER}) seconds=(?P<seconds>{_NUMBER})"
    r" kind=(?P<kind>finished|failed|oom-killed|killed|time-limit|interrupted) code=(?P<code>\d{1,3})"
    rf"(?: signal=(?P<signal>{_SIGNAL}))?(?: forwarded=(?P<forwarded>{_SIGNAL}))?"
    rf" stalled=(?P<stalled>yes|no)(?: quiet=(?P<quiet>{_NUMBER}))?"
    r"(?: oom-kill=(?P<counted>yes|no|unknown) memory=(?P<held>\d{1,18}) limit=(?P<limit>\d{1,18})"
    r"(?: ranks=(?P<ranks>[0-9,-]{1,200}))?)?(?: .*)?"
)
_COUNTED = {"yes": True, "no": False}
# Launchers, container runtimes, and `kubectl logs` print a time, a host, or a Pod before each line.
# `LineReader` removes most of these prefixes. This pattern accepts any other prefix of up to four words
# that begins with a month, or whose first word contains a character that is not a letter. A colon directly
# before "stallwatch:" shows a message from a shell: ``script: line 5: stallwatch: command not found``.
_PREFIX = r"(?:[A-Z][a-z]{2}(?= +\d)|[A-Za-z]{0,100}[^A-Za-z\s]\S{0,100}) +(?:\S{1,100} ){0,3}"
_OWN = lazy(f"(?:{_PREFIX}(?<!: ))?{OWN_LINE}")


class StatedEnd(msgspec.Struct, frozen=True):
    """The end of a command, as an agent stated it in the log."""

    ending: Ending
    stalled: bool  #: True if the run was stalled when the command ended
    at: float  #: Unix time of the end
    source: str
    number: int  #: line number in the source
    others: tuple[MemoryUse, ...] = ()  #: memory use on the hosts of other agents of the same start

    @property
    def weight(self) -> tuple[int, bool]:
        """The weight of this end if several agents watched the run.

        The end with the highest weight counts.
        """
        ending = self.ending
        by_itself = 3 if ending.failed else 0
        return (1 + self.stalled if ending.stopped else by_itself), ending.kind in ("killed", "oom-killed")


def end_line(ending: Ending, at: float, *, stalled: bool) -> str:
    """Return the line that states the end, without its prefix, or "" if the end of the command is unknown."""
    if ending.kind == "unknown" or ending.exit_code is None:
        return ""
    memory = ending.memory
    forwarded = next((each for each in _sentences(ending.detail) if each.id == "run.passed-on"), None)
    fields: dict[str, object] = {
        "at": f"{at:.1f}",
        "seconds": f"{ending.seconds:.1f}",
        "kind": ending.kind,
        "code": ending.exit_code,
        "signal": ending.signal,
        "forwarded": forwarded.params["signal"] if forwarded is not None else None,
        "stalled": "yes" if stalled else "no",
        "quiet": f"{ending.quiet:.1f}" if ending.quiet is not None else None,
    }
    if memory is not None and (memory.counted or memory.most):
        counted = {True: "yes", False: "no", None: "unknown"}[memory.counted]
        fields |= {"oom-kill": counted, "memory": memory.most, "limit": memory.limit}
        ranks = spans_of(sorted(memory.ranks))
        if 0 < len(ranks) <= _MOST_RANKS:
            fields["ranks"] = ranks
    return " ".join(["ended", *(f"{key}={value}" for key, value in fields.items() if value is not None)])


def _sentences(text: Text) -> tuple[Message, ...]:
    return (text, *text.then) if isinstance(text, Message) else ()


def own_text(text: str) -> str | None:
    """Return a Stallwatch line without its prefix, or ``None`` if a different program printed the line."""
    found = _OWN.match(text)
    return text[found.end() - len(OWN_LINE) :] if found else None


def stated_end(line: Line) -> StatedEnd | None:
    """Return the end that a line states, or ``None`` if the line does not state an end."""
    text = own_text(line.text)
    found = _STATED.fullmatch(text) if text is not None else None
    if found is None:
        return None
    code, signal, forwarded, quiet = found.group("code", "signal", "forwarded", "quiet")
    detail = message("run.exited", code=int(code))
    if forwarded is not None:
        detail = message("run.passed-on", signal=forwarded, how=message("run.status-code", code=int(code)))
    elif signal is not None and int(code):
        detail = message("run.ended-signal", signal=signal)
    memory = None
    if found["counted"] is not None:
        memory = MemoryUse(
            _COUNTED.get(found["counted"]),
            int(found["held"]),
            int(found["limit"]),
            dict.fromkeys(ranks_in(found["ranks"] or ""), 0),  # their memory is part of `held`
        )
    ending = Ending(
        kind=found["kind"],  # type: ignore[arg-type]
        exit_code=int(code),
        signal=signal,
        detail=detail,
        seconds=float(found["seconds"]),
        memory=memory,
        quiet=float(quiet) if quiet is not None else None,
    )
    return StatedEnd(ending, found["stalled"] == "yes", float(found["at"]), line.source, line.number)


def chosen_end(known: StatedEnd | None, new: StatedEnd) -> StatedEnd:
    """Choose which of two stated ends counts for the run.

    The agents of one start run at the same time. Therefore, a command that started after another command
    ended belongs to a newer start, and the end of the newer start counts. In one start, a failure takes
    precedence over an end from outside.
    """
    if known is None or known.at <= new.at - new.ending.seconds:
        return new
    if new.at <= known.at - known.ending.seconds:
        return known
    chosen = max(sorted((known, new), key=lambda end: end.at), key=lambda end: end.weight)
    left = new if chosen is known else known
    others = [*known.others, *new.others, *filter(None, [left.ending.memory])]
    return msgspec.structs.replace(chosen, others=tuple(others[:_MOST_HOSTS]))


def _with_memory_of_killed(end: StatedEnd, killed: set[int]) -> StatedEnd:
    """If an agent stated the memory use on the host of the killed ranks, add the memory use to `end`."""
    memory = next((memory for memory in end.others if killed and killed <= memory.ranks.keys()), None)
    if memory is None:
        return end
    return msgspec.structs.replace(end, ending=msgspec.structs.replace(end.ending, memory=memory))


def last_step_lines(streams: Mapping[Key, StreamReading]) -> dict[str, int]:
    """For each source that shows steps, return the number of the line that shows the last step."""
    lines: dict[str, int] = {}
    for stream in streams.values():
        if stream.last_advance is not None:
            lines[stream.source] = max(stream.last_advance.number, lines.get(stream.source, 0))
    return lines


def end_of_run(streams: Mapping[Key, StreamReading]) -> StatedEnd | None:
    """Return the end of the run that its streams state, unless the run continued after this end."""
    stated = [end for stream in streams.values() if (end := stream.stated_end) is not None]
    if not stated:
        return None
    steps = last_step_lines(streams)
    chosen: StatedEnd | None = None
    for end in stated:
        if steps.get(end.source, 0) <= end.number + _LINES_AFTER:
            chosen = chosen_end(chosen, end)
    codes = [item for stream in streams.values() for item in stream.summary.codes.items()]
    killed = {rank for rank, code in codes if code in BY_SIGKILL}
    return _with_memory_of_killed(chosen, killed) if chosen is not None else None
