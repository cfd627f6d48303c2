"""The report for programs: the JSON of ``stallwatch diagnose --json``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.locale import rendered
from stallwatch_rules.records import Diagnosis, JobTold
from stallwatch_rules.report.clean import cleaned, cleaned_job

#: What schema 1 calls a run of which nothing bad is known.
_HEALTHY = ("interrupted", "finished", "unfinished", "no-evidence")


def schema_1_verdict(one: Diagnosis | JobTold) -> str:
    """Return the verdict as version 0.1 knew it: of a run that the system stopped, that it failed."""
    if one.verdict not in _HEALTHY:
        return one.verdict
    return "failed" if one.in_trouble else "healthy"


def to_json(
    diagnosis: Diagnosis,
    language: str = "en",
    *,
    indent: int = 2,
    jobs: Sequence[JobTold] = (),
    explain: bool = False,
) -> bytes:
    """The diagnosis as JSON, with a line end: no NaN or infinity, no secret in any text.

    Where it is that of one of several `jobs`, a line of each is in it.
    """
    told = cleaned(rendered(diagnosis, language))
    told |= {"verdict": schema_1_verdict(diagnosis), "schema": 1}
    del told["series"]  # thousands of numbers: ``stallwatch samples`` has them all
    del told["interrupted_by"], told["starts"]
    if not explain:
        del told["explained"]
    if jobs:
        told["jobs"] = [cleaned_job(rendered(job, language)) for job in jobs]
        for job, known in zip(told["jobs"], jobs, strict=True):
            job["verdict"] = schema_1_verdict(known)
            del job["badge"], job["interrupted_by"]  # the verdict for people
    encoded = msgspec.json.encode(told)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded) + b"\n"
