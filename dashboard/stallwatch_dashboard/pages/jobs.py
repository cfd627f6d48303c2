"""Several jobs of one upload: a table of them, and the choice of the one whose report is shown."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from stallwatch_dashboard.pages.common import language, say
from stallwatch_dashboard.safetext import cell
from stallwatch_rules.records import JobTold
from stallwatch_rules.report.jobtable import shown_name, table

TOGETHER = ""  #: the choice of all files as one run: no job is called so
CHOICE = "which_job"  #: where the session keeps it

_ROW = 35  # pixels, as Streamlit draws them
_MOST_ROWS = 6


def draw_jobs(jobs: Sequence[JobTold]) -> None:
    """The table of all, the newest first."""
    told = table(jobs, language(), len(jobs))
    columns = [[cell(row.cells[number]) for row in told.rows] for number in range(len(told.heads))]
    st.dataframe(
        pd.DataFrame(dict(zip(told.heads, columns, strict=True))),
        hide_index=True,
        height=_ROW * (1 + min(len(told.rows), _MOST_ROWS)) + 2,  # it scrolls: the verdict stands below
    )


def choose_job(jobs: Sequence[JobTold]) -> str:
    """The name of the job whose report is asked for; `TOGETHER` for all of them as one run."""
    names = {job.name: f"{shown_name(job, language())} · {job.badge}" for job in jobs}
    reported = next((number for number, job in enumerate(jobs) if job.reported), 0)
    chosen: str | None = st.selectbox(
        say("which_job"),
        [*names, TOGETHER],
        index=reported,
        format_func=lambda name: cell(names.get(name, say("all_as_one_run"))),
        help=say("jobs_by_name"),
        key=CHOICE,
    )
    return jobs[reported].name if chosen is None else chosen
