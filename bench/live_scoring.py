"""Score a run of the live benchmark by its event, its messages, and its verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from live_programs.table import Expected, Program

#: Patterns of the text that names the cause in a message, by class of cause.
CAUSES = {
    "own-code": r"stall|holds up|no step|no progress|hang",
    "busy": r"busy|loop|without progress",
    "loader": r"data.?load",
    "save": r"checkpoint|torch\.save|\bsav(?:e|es|ing)\b",
    "evaluation": r"evaluat|validat|metric",
    "stopped": r"SIGSTOP|SIGCONT|stopped by a signal|suspended",
    "collective": r"all_reduce|all_gather|barrier|collective",
    "killed": r"SIGKILL|signal 9|killed|ended without",
    "exception": r"Error\b|exception",
    "oom": r"out of memory|\boom\b",
    "nan": r"\bnan\b|not a number|non-finite",
    "start": r"start|before (?:its|the) first step|first step|loading|init",
    "network": r"network|http|socket|service|server",
    "lock": r"\block",
    "straggler": r"straggl|slower|slow",
    "slow": r"slow|longer|degrad",
    "truncated": r"truncat|incomplete|corrupt|damaged|broken",
    "trace-cache": r"trace.cache",
    "reward": r"reward",
    "no-progress": r"no step|stall|silent|stopped|no line|nothing",
}

#: Maximum number of seconds from the event to the first message.
LIMITS = {
    "probe": 35.0,
    "evaluation": 60.0,  # also the limit for other waits at a call site that has been seen before
    "no-probe": 90.0,
    "trace-cache": 45.0,
    "crash": 60.0,
    "early": 60.0,
    "busy": 60.0,  # a loop that computes can be real work, so it causes only a warning
    "patience": 190.0,  # a wait of a kind that has not been seen before
    "start": 620.0,
}
_MARGIN = 5.0  #: seconds allowed in addition to the threshold that the run published
_FOLLOWS_THRESHOLD = ("probe", "evaluation")
LONGEST = 180.0  #: the largest published threshold that can justify a late message
_ALARMS = ("warning", "critical")
_HEALTHY = ("healthy", "no-training-log")
_FAILED = ("failed", "unknown-failure")


@dataclass(frozen=True)
class Message:
    """One message that the chat received."""

    at: float  #: Unix time
    body: dict[str, Any]

    @property
    def text(self) -> str:
        return f"{self.body.get('title', '')}\n{self.body.get('text', '')}"

    @property
    def alarms(self) -> bool:
        return self.body.get("severity") in _ALARMS

    @property
    def closes(self) -> bool:
        return self.body.get("status") == "resolved"

    def names(self, rank: int) -> bool:
        """Return True if the message names this rank as the rank at fault."""
        named = {str(self.body.get("rank")), *str(self.body.get("odd_ranks", "")).split(",")}
        if str(rank) in named:
            return True
        return bool(re.search(rf"\brank {rank}\b", str(self.body.get("title", ""))))


@dataclass(frozen=True)
class Observed:
    """The observations of one run of a program."""

    started: float
    event: float | None  #: Unix time, or ``None`` if the event never happened
    messages: Sequence[Message]
    verdict: str  #: final verdict of the diagnosis
    state: str  #: final state that the agent reports
    threshold: float | None = None  #: the longest stall threshold that the run published
    stopped: float | None = None  #: time when the runner sent Control+C to a program that stopped responding


@dataclass(frozen=True)
class Score:
    """The score of a run."""

    outcome: str  #: right, false, wrong, missed, late, or invalid
    why: str = ""
    seconds: float | None = None  #: seconds from the event to the first message
    opened: int = 0  #: number of messages that open an incident
    closed: int = 0  #: number of messages that close an incident
    limit: float | None = field(default=None, compare=False)

    @property
    def wordy(self) -> bool:
        """Return True if one event caused several opening messages or several closing messages."""
        return self.opened > 1 or self.closed > 1


def score(program: Program, seen: Observed) -> Score:
    """Score a run of the program by its messages and its verdict."""
    alarms = [message for message in seen.messages if message.alarms]
    if program.expected is None:
        return _healthy(program, seen, alarms)
    if seen.event is None:
        return Score("invalid", "the program never reported its event")
    early = [message for message in alarms if message.at < seen.event]
    if early:
        return Score("false", f"before the event: {_short(early[0])}", *_counts(alarms))
    return _failing(program.expected, seen, seen.event, alarms)


def _healthy(program: Program, seen: Observed, alarms: Sequence[Message]) -> Score:
    counts = _counts(alarms)
    if alarms:
        after = alarms[0].at - seen.started
        return Score("false", f"{after:.0f} s after the start: {_short(alarms[0])}", *counts)
    if seen.verdict not in _HEALTHY or seen.state != program.state:
        return Score(
            "false", f"the final state is {seen.state or 'missing'}, {seen.verdict or 'no verdict'}", *counts
        )
    return Score("right")


def _failing(expected: Expected, seen: Observed, event: float, alarms: Sequence[Message]) -> Score:
    limit = LIMITS[expected.limit]
    if expected.limit in _FOLLOWS_THRESHOLD and seen.threshold is not None:
        limit = min(max(limit, seen.threshold + _MARGIN), LONGEST)
    counted = _counts(alarms)[1:]
    if not alarms or (seen.stopped is not None and alarms[0].at > seen.stopped):
        return Score("missed", "no message", None, *counted, limit)
    first = alarms[0]
    seconds = first.at - event

    def scored(outcome: str, why: str = "") -> Score:
        return Score(outcome, why, seconds, *counted, limit)

    lacks = _lacks(expected, first)
    if expected.limit == "crash" and seen.verdict not in _FAILED:
        return scored("wrong", f"the final verdict is {seen.verdict or 'missing'}, {seen.state}")
    if lacks:
        later = any(not _lacks(expected, message) for message in alarms[1:])
        return scored("wrong", f"no {lacks}{' in the first message' if later else ''}: {_short(first)}")
    if seconds > limit:
        return scored("late", f"after {seconds:.0f} s; the limit is {limit:.0f} s")
    if expected.limit == "crash" and sum(counted) > 1:
        return scored("wrong", f"{sum(counted)} messages for one crash")
    if expected.recovers and not any(message.closes for message in alarms):
        return scored("wrong", "the recovery was not reported")
    return scored("right")


def _lacks(expected: Expected, message: Message) -> str:
    """Return the missing part of the message, or an empty string if the message is complete."""
    text = f"{message.text}\n{message.body.get('rule', '')}"
    if message.body.get("severity") not in expected.severities:
        return f"severity {' or '.join(expected.severities)}"
    if expected.rank is not None and not message.names(expected.rank):
        return "rank"
    if not re.search(expected.place, text):
        return "place"
    if not re.search(CAUSES[expected.cause], text, re.IGNORECASE):
        return f"cause ({expected.cause})"
    return ""


def _counts(alarms: Sequence[Message]) -> tuple[None, int, int]:
    """Return ``None`` for the detection time, followed by the numbers of opening and closing messages."""
    closed = sum(message.closes for message in alarms)
    return None, len(alarms) - closed, closed


def _short(message: Message) -> str:
    return " ".join(str(message.body.get("title", "")).split())[:120]
