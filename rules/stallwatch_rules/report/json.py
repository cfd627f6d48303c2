"""The report for programs: the JSON of ``stallwatch diagnose --json``."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.redact import redact


def to_json(diagnosis: Diagnosis, *, indent: int = 2) -> bytes:
    """The diagnosis as JSON, with a line end: no NaN or infinity, no secret in any text."""
    clean = _clean(msgspec.to_builtins(diagnosis))
    encoded = msgspec.json.encode(clean)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded) + b"\n"


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
