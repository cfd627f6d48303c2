"""A run's folder with missing or truncated log copies: the stored diagnosis counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.messages import has
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.report.phrases import badge, headline

FAILED = Ending(kind="failed", exit_code=1, detail="The command exited with 1.")
KILLED = Ending(kind="killed", exit_code=137, signal="SIGKILL", detail="The command was ended by SIGKILL.")
STEPS = "".join(f"2026-11-20T23:56:{n}Z stdout F step {n} loss 1.5\n" for n in range(10, 30))
OOM = (
    "2026-11-20T23:56:31Z stderr F torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
ODD = (
    "2026-11-20T23:56:31Z stderr F Traceback (most recent call last):\n"
    '2026-11-20T23:56:31Z stderr F   File "/srv/train.py", line 8, in <module>\n'
    "2026-11-20T23:56:31Z stderr F ValueError: no reward for batch 24\n"
)


def ended(home: Path, catalogue: Catalogue, ending: Ending | None, error: str = OOM) -> Path:
    """Create the folder of a run with all of the agent's files: the copy, and its diagnosis."""
    folder = RunFolder.create("job", ["python", "train.py"], home=home, now=1.0)
    folder.write_info(ending=ending)
    log(folder.path).write_text(STEPS + error)
    diagnosis, _ = rendered(diagnose_paths([folder.path], Options(catalogue)))
    folder.write_json("diagnosis.json", diagnosis)
    return folder.path


def log(folder: Path) -> Path:
    return folder / "ranks" / "rank0.log"


@pytest.mark.parametrize("ending", [FAILED, KILLED])
@pytest.mark.parametrize("left", [None, "", STEPS])
def test_stored_diagnosis_is_used_if_the_logs_show_no_cause(
    tmp_path: Path, catalogue: Catalogue, ending: Ending, left: str | None
) -> None:
    path = ended(tmp_path, catalogue, ending)
    log(path).unlink() if left is None else log(path).write_text(left)
    found, problems = rendered(diagnose_paths([path], Options(catalogue)))
    assert problems == [] and found.verdict == "failed"
    assert found.primary is not None and found.primary.rule == "cuda-oom"
    lines = 20 if left else 0
    assert found.notes[0].startswith(f"The log copies contain only {lines} of the 21 lines that")
    chinese, _ = rendered(diagnose_paths([path], Options(catalogue)), "zh")
    assert chinese.notes[0].startswith(f"agent 读到 21 行输出，副本里只留下 {lines} 行")


def test_stored_unknown_exception_is_used(tmp_path: Path, catalogue: Catalogue) -> None:
    path = ended(tmp_path, catalogue, FAILED, ODD)
    log(path).unlink()
    found, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert [item.message for item in found.unknown] == ["no reward for batch 24"]


def test_cause_in_the_logs_has_precedence(tmp_path: Path, catalogue: Catalogue) -> None:
    path = ended(tmp_path, catalogue, FAILED)
    log(path).write_text(ODD)
    found, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert found.primary is None and [item.exception for item in found.unknown] == ["ValueError"]


def test_stored_diagnosis_is_ignored_for_a_running_run(tmp_path: Path, catalogue: Catalogue) -> None:
    path = ended(tmp_path, catalogue, None)
    log(path).write_text(STEPS)
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].verdict == "unfinished"


def test_unreadable_stored_diagnosis_is_ignored(tmp_path: Path, catalogue: Catalogue) -> None:
    path = ended(tmp_path, catalogue, FAILED)
    log(path).unlink()
    (path / "diagnosis.json").write_text("{broken")
    found, problems = rendered(diagnose_paths([path], Options(catalogue)))
    assert found.verdict == "unknown-failure" and problems == []
    assert found.notes[-1].startswith("No output of the run was kept")


def incident(**about: Any) -> Incident:
    return Incident(
        id="job/ended/unknown-failure/1",
        run="job",
        kind="ended",
        rule="unknown-failure",
        severity="critical",
        status="open",
        episode=1,
        opened_at=2.0,
        updated_at=2.0,
        evidence=["/srv/train.py:8 main", "KeyError: 'labels'"],
        ending=FAILED,
        **about,
    )


@pytest.mark.parametrize("rule", ["", "cuda-oom"])
def test_ending_is_taken_from_the_incidents(tmp_path: Path, catalogue: Catalogue, rule: str) -> None:
    """The disk was full, so neither the copies nor the run's own record could be written."""
    folder = RunFolder.create("job", ["python", "train.py"], home=tmp_path, now=1.0)
    log(folder.path).write_text(STEPS)
    known = rendered(diagnose_paths([ended(tmp_path / "other", catalogue, FAILED)], Options(catalogue)))[
        0
    ].primary
    folder.append_incident(incident(primary=known if rule else None))
    found, _ = rendered(diagnose_paths([folder.path], Options(catalogue)))
    assert found.verdict == ("failed" if rule else "unknown-failure")
    assert (found.primary.rule if found.primary is not None else "") == rule
    assert "KeyError: 'labels'" in found.notes[0] and "1970-01-01T00:00:02" in found.notes[0]
    assert not any("last heard from" in note for note in found.notes)


def test_run_of_a_killed_agent_is_not_called_healthy(tmp_path: Path, catalogue: Catalogue) -> None:
    folder = RunFolder.create("job", ["python", "train.py"], home=tmp_path, now=1.0)
    log(folder.path).write_text(STEPS)
    found, _ = diagnose_paths([folder.path], Options(catalogue))
    assert render(badge(found)) == "UNFINISHED" and "without reporting the end" in render(headline(found))
    assert has(found.notes[-1], "diagnosis.agent-gone")
    log(folder.path).write_text(STEPS + OOM)
    found, _ = diagnose_paths([folder.path], Options(catalogue))
    assert render(badge(found)) == "FAILED"
