"""Remove secrets, control characters, and NaN from a diagnosis, as the last safeguard before a report."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stallwatch_rules.decoding import convert
from stallwatch_rules.records import Diagnosis, JobSummary
from stallwatch_rules.text.controls import without_controls
from stallwatch_rules.text.redact import redact


def cleaned(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain data that is safe to show anywhere."""
    clean: dict[str, Any] = clean_values(msgspec.to_builtins(diagnosis))
    return clean


def clean_diagnosis(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis without secrets, control characters, or NaN."""
    return convert(cleaned(diagnosis), Diagnosis)


def cleaned_job(job: JobSummary) -> dict[str, Any]:
    """Return a job's summary as plain data that is safe to show anywhere."""
    clean: dict[str, Any] = clean_values(msgspec.to_builtins(job))
    return clean | job_paths(job)


def job_paths(job: JobSummary) -> dict[str, Any]:
    """Return the name and the files of a job in a form that is safe to show.

    The name can be the path of a folder, and users can pass it to ``--job``.
    """
    return {"name": clean_path(job.name), "files": [clean_path(file) for file in job.files]}


def clean_path(path: str) -> str:
    """Return a path with its secrets masked. The user's name remains, so that readers recognize the path."""
    return without_controls(redact(path, homes=False))


def clean_values(value: Any) -> Any:
    """Return a value as plain data that is safe to show anywhere."""
    if isinstance(value, str):
        return without_controls(redact(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {
            key: clean_path(item) if key == "file" and isinstance(item, str) else clean_values(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [clean_values(item) for item in value]
    return value
