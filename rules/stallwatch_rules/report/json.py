"""The report for programs: the JSON of ``stallwatch diagnose --json``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallwatch_rules.locale import rendered
from stallwatch_rules.records import Diagnosis, JobTold
from stallwatch_rules.report.clean import cleaned, cleaned_job


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
    del told["series"]  # thousands of numbers: ``stallwatch samples`` has them all
    if not explain:
        del told["explained"]
    if jobs:
        told["jobs"] = [cleaned_job(rendered(job, language)) for job in jobs]
        for job in told["jobs"]:
            del job["badge"]  # the verdict for people
    encoded = msgspec.json.encode(told)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded) + b"\n"
