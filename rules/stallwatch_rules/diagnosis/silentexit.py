"""A rank that ended first, with an exit status of its own and without an error that anybody read.

``raise SystemExit(1)``, ``sys.exit(1)`` and ``os._exit(1)`` print nothing, and what the other ranks print
then is only that their peer went away. Which rank it was, its launcher knows.
"""

from __future__ import annotations

from stallwatch_rules.diagnosis.exceptions import Exceptions
from stallwatch_rules.diagnosis.findings import Found, Streams
from stallwatch_rules.diagnosis.peers import ended_first
from stallwatch_rules.diagnosis.signals import SIGTERM
from stallwatch_rules.diagnosis.verdict import Question
from stallwatch_rules.messages import Text, message
from stallwatch_rules.text.lazy import lazy

_NOT_RUN = lazy(r"exited with 12[67]\b")  # POSIX 2018, Shell Command Language, 2.8.2
MOST = 127  #: 128 + n stands for a signal, and so do negative numbers


def ended_silently(found: list[Found], exceptions: Exceptions, streams: Streams) -> Text:
    """The sentence that names the rank; empty where there is none, or an error may be its own."""
    first = ended_first(streams)
    if first is None or not 0 < first[1] <= MOST:
        return ""
    rank, code = first
    spoke = {seen.stream[1] for seen in exceptions.unknown if seen.fatal or seen.stream[1] == rank}
    for one in found:
        if one.is_failure and one.rule != SIGTERM:
            spoke |= {where for _, where in one.hits}
    if spoke & {rank, None}:
        return ""
    return message("diagnosis.ended-silently", rank=rank, code=code)


def ended_by_itself(exceptions: Exceptions, streams: Streams, question: Question) -> Text:
    """The same of a command without a launcher: no signal ended it, and nothing was raised."""
    launched = any(stream.summary.codes or stream.summary.spawned for stream in streams.values())
    if question.kind != "failed" or launched or exceptions.any:
        return ""
    key = "command-not-run" if _NOT_RUN.search(question.told) else "ended-by-itself"
    return message(f"diagnosis.{key}")
