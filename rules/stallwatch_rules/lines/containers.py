"""Lines as container runtimes keep them: Kubernetes' CRI records, Docker's JSON records, stamped copies.

A record says when and to which stream its text was written, and whether the line goes on in the next record
of that stream (a runtime cuts lines at 16 KiB, and keeps what was flushed without a newline). Collectors'
records in JSON are read in ``collected``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from stallwatch_rules.lines.collected import collected
from stallwatch_rules.lines.stamps import unix_time
from stallwatch_rules.text.lazy import lazy

_CRI = lazy(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)"
    r" (stdout|stderr) ([FP])(?::\w+)?(?: |$)"
)
# `kubectl logs --timestamps`, `docker logs -t`, GitHub's and GitLab's runners. A program's own logger writes
# fewer digits.
_STAMPED = lazy(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(?:(\d{7,9})Z |(\d{6})Z \d\d[OE][ +])")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class Record(NamedTuple):
    """One record, its text taken out."""

    time: float | None
    stream: str
    partial: bool  #: the line goes on in the stream's next record
    text: str


class _DockerRecord(msgspec.Struct):
    log: str
    stream: str
    time: str
    tag: str = msgspec.field(default="", name="_p")  # fluent-bit's copy of CRI's flag


_docker = msgspec.json.Decoder(_DockerRecord)


def record_of(text: str) -> Record | None:
    """The record that a physical line is."""
    if text[10:11] == "T" and text[4:5] == "-":
        found = _CRI.match(text)
        if found:
            stamp = unix_time(found[1], found[2], found[3])
            return Record(stamp, found[4], found[5] == "P", text[found.end() :])
        found = _STAMPED.match(text)
        if found:
            return Record(unix_time(found[1], found[2] or found[3]), "", False, text[found.end() :])
    elif may_be_json(text):
        if '"log":' in text and '"stream":' in text and '"time":' in text:
            record = _docker_record(text)
            if record is not None:
                return record
        told = collected(text)
        return Record(told.time, "", False, told.text) if told is not None else None
    return None


def may_be_json(text: str) -> bool:
    """Whether the line begins as records in JSON do: a cheap look."""
    return text[:2] == '{"'


def _docker_record(text: str) -> Record | None:
    try:
        record = _docker.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    found = _RFC3339.match(record.time)
    if found is None:
        return None
    text = record.log.removesuffix("\n")
    partial = record.tag == "P" if record.tag else text == record.log
    return Record(unix_time(found[1], found[2], found[3]), record.stream, partial, text)
