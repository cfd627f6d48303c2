"""Write the JSON report of ``stallwatch diagnose --json`` for programs. docs/json.md describes every key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from stallwatch_rules.locale import render, rendered
from stallwatch_rules.messages import Message, Text
from stallwatch_rules.records import Diagnosis, JobSummary
from stallwatch_rules.report.clean import clean_values, cleaned, cleaned_job, job_paths

Schema = Literal[1, 2]

#: Verdicts that schema 1 calls "healthy" if the run is not in trouble.
_HEALTHY = ("interrupted", "finished", "unfinished", "no-evidence")
#: Omitted keys: "series" contains thousands of numbers, which ``stallwatch samples`` prints, and "badge"
#: contains the verdict in words.
_LEFT_OUT = ("series", "badge")
_IN_SCHEMA_2 = {"harm": "impact", "harm_before": "impact_before"}


def to_json(
    diagnosis: Diagnosis,
    language: str = "en",
    *,
    indent: int = 2,
    jobs: Sequence[JobSummary] = (),
    explain: bool = False,
    schema: Schema = 1,
) -> bytes:
    """Return the diagnosis as JSON that ends with a line feed. NaN, infinity, and secrets are removed.

    If the diagnosis is about one of several `jobs`, the JSON contains a summary of each job.
    """
    report = (_schema_1 if schema == 1 else _schema_2)(diagnosis, language, jobs)
    if not explain:
        del report["explained"]
    encoded = msgspec.json.encode(report)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded) + b"\n"


def schema_1_verdict(diagnosis: Diagnosis | JobSummary) -> str:
    """Return the name that version 0.1 used for the verdict. A run that the system stopped is ``failed``."""
    if diagnosis.verdict not in _HEALTHY:
        return diagnosis.verdict
    return "failed" if diagnosis.in_trouble else "healthy"


def _schema_1(diagnosis: Diagnosis, language: str, jobs: Sequence[JobSummary]) -> dict[str, Any]:
    report = cleaned(rendered(diagnosis, language))
    report |= {"verdict": schema_1_verdict(diagnosis), "schema": 1}
    del report["series"], report["interrupted_by"], report["starts"], report["hosts"]
    if report["primary"] is not None:
        del report["primary"]["host"]
    del report["stats"]["unread_files"], report["stats"]["unread_bytes"]
    for finding in report["findings"]:
        if not finding["at_least"]:
            del finding["at_least"]  # schema 1 has this key only if lines were skipped
    if jobs:
        report["jobs"] = [cleaned_job(rendered(job, language)) for job in jobs]
        for job, known in zip(report["jobs"], jobs, strict=True):
            job["verdict"] = schema_1_verdict(known)
            del job["badge"], job["interrupted_by"]
    return report


def _schema_2(diagnosis: Diagnosis, language: str, jobs: Sequence[JobSummary]) -> dict[str, Any]:
    report = clean_values(_plain(diagnosis, None, language)) | {"schema": 2}
    if jobs:
        report["jobs"] = [clean_values(_plain(job, None, language)) | job_paths(job) for job in jobs]
    first = ("schema", "verdict", "interrupted_by")
    return {key: report[key] for key in (*first, *(key for key in report if key not in first))}


def _plain(value: Any, hint: Any, language: str) -> Any:
    """Convert a value of a record to plain data of schema 2. `hint` is the type of the record's field."""
    if isinstance(value, Message) or hint == Text:
        return _text(value, language)
    if isinstance(value, msgspec.Struct):
        hints = _hints(type(value))
        return {
            _IN_SCHEMA_2.get(name, name): _plain(getattr(value, name), hints[name], language)
            for name in value.__struct_fields__
            if name not in _LEFT_OUT
        }
    if isinstance(value, list):
        (of,) = get_args(hint) or (None,)
        return [_plain(item, of, language) for item in value]
    return value


@cache
def _hints(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _text(text: Text, language: str) -> dict[str, Any] | None:
    """Return text with the ID and the parameters of its message. A line from a log has no ID."""
    if not text:
        return None
    words = render(text, language)
    if isinstance(text, str):
        return {"id": None, "params": {}, "text": words}
    params = {name: _plain(value, None, language) for name, value in text.params.items()}
    then = {"then": [_text(sentence, language) for sentence in text.then]} if text.then else {}
    return {"id": text.id, "params": params, "text": words} | then
