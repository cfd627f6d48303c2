"""The error file that torch's elastic launcher keeps of a failed rank: one JSON object, one line."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stallwatch_rules.failures.raised import Frame, Mark, Raised, kind_of
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy

MAX_MESSAGE = 1000
_FRAME = lazy(r'^\s*File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_NAME = lazy(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$", re.DOTALL)


def read_error_file(line: Line, mark: Mark) -> Raised | None:
    """The exception in ``{"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "…"}}}``."""
    try:
        record = msgspec.json.decode(line.text)
    except msgspec.DecodeError:  # cut, or no error file at all
        return None
    inner = _entry(record, "message")
    told = _entry(inner, "message")
    stack = _entry(_entry(inner, "extraInfo"), "py_callstack")
    found = _NAME.match(told.strip()) if isinstance(told, str) else None
    if found is None or not isinstance(stack, str):
        return None
    frames = [Frame(f["path"], int(f["line"]), (f["name"] or "").strip()) for f in _FRAME.finditer(stack)]
    first = (found["message"] or "").strip().partition("\n")[0]
    raised = Raised(found["name"], first[:MAX_MESSAGE], line, mark, frames)
    raised.kind = kind_of(raised)
    return raised


def _entry(record: Any, key: str) -> Any:
    return record.get(key) if isinstance(record, dict) else None
