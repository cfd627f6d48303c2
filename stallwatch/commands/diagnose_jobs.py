"""``stallwatch diagnose`` of several jobs: how to see the report of another one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stallwatch_rules.records import IN_TROUBLE, JobTold
from stallwatch_rules.report.clean import clean_path
from stallwatch_rules.report.jobtable import OTHER

if TYPE_CHECKING:
    from stallwatch_exporter.postmortem.jobs import JobsResult

_FEW = 3  # paths


def another(told: JobsResult, paths: Sequence[str], options: Sequence[str] = ()) -> str:
    """A command that shows the next job's report: of those in trouble if there is one, of the newest else.

    ``options`` are those of this call that change what is told.
    """
    others = sorted(
        (job for job in told.jobs if not job.reported), key=lambda job: job.verdict not in IN_TROUBLE
    )
    return next((command for job in others if (command := _command(job, told, paths, options))), "")


def _command(job: JobTold, told: JobsResult, paths: Sequence[str], options: Sequence[str]) -> str:
    own = told.paths.get(job.name, [])
    again = "-" not in paths  # standard input is read once
    if own and (len(own) <= _FEW or not again):
        # Of files that are of no job that is known, nobody said that they are of one.
        apart = ["--together"] if len(own) > 1 and job.name.startswith(OTHER) else []
        if command := _shell([*options, *apart], own):
            return command
    return _shell([*options, "--job", job.name], paths) if again else ""


def _shell(options: Sequence[str], paths: Sequence[str]) -> str:
    words = [*options, *(["--"] if any(path.startswith("-") for path in paths) else []), *paths]
    # What a terminal obeys, or cannot show, cannot be copied from there; a secret is shown nowhere.
    if any(clean_path(word) != word or not word.isprintable() for word in words):
        return ""
    return shlex.join(["stallwatch", "diagnose", *words])
