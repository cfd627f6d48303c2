"""The report for programs: the JSON of ``stallwatch diagnose --json``."""

from __future__ import annotations

import msgspec

from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.clean import cleaned


def to_json(diagnosis: Diagnosis, *, indent: int = 2) -> bytes:
    """The diagnosis as JSON, with a line end: no NaN or infinity, no secret in any text."""
    told = cleaned(diagnosis)
    del told["series"]  # thousands of numbers: ``stallwatch samples`` has them all
    encoded = msgspec.json.encode(told)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded) + b"\n"
