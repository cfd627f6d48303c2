"""The diagnosis that was made when a run ended, where the copies of its output no longer show why.

Copies are cut short where the disk was full, and gone where somebody deleted them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch_exporter.runs.given import run_folder
from stallwatch_logs.inputs import InputProblem
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.text.sentences import say


def with_kept(
    diagnosis: Diagnosis,
    problems: list[InputProblem],
    paths: Sequence[str | os.PathLike[str]],
    language: str,
) -> Diagnosis:
    """The kept diagnosis in the place of one that knows no cause, where fewer lines are left than were seen.

    Problems that only say that there is nothing to read in the run's folder are taken out of `problems`.
    """
    folder = run_folder(paths)
    kept = _kept(folder) if folder is not None else None
    shown = diagnosis.primary is not None and diagnosis.primary.evidence  # else it is known of the end alone
    if folder is None or kept is None or shown or diagnosis.unknown:
        return diagnosis
    left, seen = diagnosis.stats.lines, kept.stats.lines
    if left >= seen or (kept.primary is None and not kept.unknown):
        return diagnosis
    if not diagnosis.stats.files:
        problems[:] = [one for one in problems if not Path(one.path).is_relative_to(folder)]
    note = say("kept-diagnosis", language, left=f"{left:,}", seen=f"{seen:,}")
    return msgspec.structs.replace(kept, notes=[note, *kept.notes])


def _kept(folder: Path) -> Diagnosis | None:
    """What the agent wrote of the run, if it ended."""
    from stallwatch_exporter.runs.runfolder import read_info

    info = read_info(folder)
    if info is None or info.ending is None:  # what is there was made of an earlier part of the run
        return None
    try:
        return msgspec.json.decode((folder / "diagnosis.json").read_bytes(), type=Diagnosis)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
