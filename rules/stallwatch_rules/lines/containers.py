"""Parse records in which container runtimes and log collectors store the text, time, and stream of lines.

CRI records of Kubernetes and JSON records of Docker contain text, its time, and its stream. They also show
whether the line continues in the next record of the same stream, because a runtime splits lines at 16 KiB and
writes a separate record for text that was flushed without a newline. ``kubectl logs --timestamps`` and
similar tools add only a time. Fluentd, Fluent Bit, Vector, log exports from Loki and cloud services, journald
(``-o json``), and loggers that write JSON use different keys for the text: ``message``, ``msg``, ``log``,
``line``, or ``textPayload``. Their records also contain a time, a level, or the origin of the line. A JSON
object that has none of these three is user data. Metrics that a trainer writes as JSON
(``{"step": 3, "loss": 0.5, …}``) do not count as a record unless they contain a traceback, because some
loggers add the step to all their records.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from stallwatch_rules.hints import may_hold
from stallwatch_rules.lines.stamps import time_of_line, unix_seconds, unix_time
from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.text.lazy import lazy

_CRI = lazy(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)"
    r" (stdout|stderr) ([FP])(?::\w+)?(?: |$)"
)
# Timestamps of `kubectl logs --timestamps`, `docker logs -t`, and the runners of GitHub and GitLab. The
# logger of a program writes fewer digits.
_STAMPED = lazy(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(?:(\d{7,9})Z |(\d{6})Z \d\d[OE][ +])")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Record(NamedTuple):
    """A record of a container runtime or a log collector: its text, time, and stream."""

    time: float | None
    stream: str
    partial: bool  #: True if the line continues in the next record of the same stream
    text: str


def record_of(text: str) -> Record | None:
    """Return the record in a line of a file, or ``None`` if the line is not a record."""
    if text[10:11] == "T" and text[4:5] == "-":
        found = _CRI.match(text)
        if found:
            stamp = unix_time(found[1], found[2], found[3])
            return Record(stamp, found[4], found[5] == "P", text[found.end() :])
        found = _STAMPED.match(text)
        if found:
            return Record(unix_time(found[1], found[2] or found[3]), "", False, text[found.end() :])
    elif may_be_json(text):
        return _json_record(text)
    return None


def may_be_json(text: str) -> bool:
    """Return whether a line can be a JSON record. Only its first characters are inspected."""
    return text[:2] == '{"'


#: Keys under which log collectors and loggers store the text of a record.
TEXTS = ("message", "msg", "log", "line", "textPayload", "MESSAGE", "@message", "body")
_TIME_KEYS = (
    "time", "ts", "timestamp", "@timestamp", "asctime", "receiveTimestamp", "__REALTIME_TIMESTAMP",
    "datetime",
)  # fmt: skip
_OTHER_KEYS = ("level", "levelname", "severity", "lvl", "stream", "kubernetes", "container_name", "hostname")
# Every record of a log collector has at least one of these keys.
_RECORD_KEYS = frozenset((*_TIME_KEYS, *_OTHER_KEYS))
_TRACEBACKS = ("exc_info", "exception", "exc_text", "traceback", "stack_trace", "stack_info")
_QUOTED = tuple(f'"{key}"' for key in (*TEXTS, *_TRACEBACKS))
_RANKS = ("rank", "global_rank")
_MOST_RANKS = 1_000_000
_NUMBERS = frozenset(("loss", "train_loss", "eval_loss", "step", "global_step", "epoch", "iteration"))
_DIGITS = 19  # maximum number of digits in a time in nanoseconds, before the year 2100
_decoder = msgspec.json.Decoder(dict[str, object])


class _DockerRecord(msgspec.Struct):
    log: str
    stream: str
    time: str
    _p: str = ""  # the CRI flag for partial lines, copied by Fluent Bit


_docker = msgspec.json.Decoder(_DockerRecord)


def _json_record(text: str) -> Record | None:
    if not may_hold(text, _QUOTED):
        return None
    try:
        record = _decoder.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        if '"log":' not in text:
            return None
        try:  # the decoder might have failed in a field that is not needed
            record = msgspec.structs.asdict(_docker.decode(text))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
    return _of_docker(record) or (None if is_training_data(text) else _of_collector(record))


def _of_docker(record: dict[str, object]) -> Record | None:
    log, stream, time, tag = map(record.get, ("log", "stream", "time", "_p"))
    found = _RFC3339.match(time) if isinstance(time, str) else None
    if found is None or not isinstance(log, str) or not isinstance(stream, str):
        return None
    text = log.removesuffix("\n")
    partial = tag == "P" if tag else text == log  # Fluent Bit copies the CRI flag for partial lines
    return Record(unix_time(found[1], found[2], found[3]), stream, partial, text)


def _of_collector(record: dict[str, object]) -> Record | None:
    """Return the record of a log collector, or ``None`` if the JSON object is not such a record.

    If the text of a record has several lines, carriage returns separate these lines, in the same way as the
    states of a redrawn line.
    """
    if _RECORD_KEYS.isdisjoint(record):
        return None
    more = [value for key in _TRACEBACKS if isinstance(value := record.get(key), str) and value]
    if not more and not _NUMBERS.isdisjoint(record):
        return None
    text = next((value for key in TEXTS if isinstance(value := record.get(key), str)), None)
    if text is None and not more:
        return None
    lines = "\n".join(more if text is None else (text, *more)).rstrip().split("\n")
    rank = next((value for key in _RANKS if _is_rank(value := record.get(key))), None)
    if rank is not None:
        lines = [f"[rank{rank}]: {line}" for line in lines]
    return Record(_time(record), "", False, "\r".join(lines))


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_RANKS


def _time(record: dict[str, object]) -> float | None:
    """Return the time of a record, from a timestamp or from seconds, ms, µs, or ns since 1970."""
    for key in _TIME_KEYS:
        value = record.get(key)
        if isinstance(value, str):
            if not (value.isascii() and value.isdigit()):
                stamp = time_of_line(value)
                if stamp is not None:
                    return stamp
                continue
            if len(value) > _DIGITS:
                continue
            value = int(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 10**_DIGITS:
            return unix_seconds(float(value))
    return None
