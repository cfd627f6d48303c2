"""``stallwatch diagnose`` of a folder with the logs of several jobs."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

import stallwatch as package
from stallwatch_exporter.postmortem import jobs as several_jobs
from stallwatch_exporter.runs.runfolder import AgentInfo

Stallwatch = Callable[..., Result]
Process = Callable[..., subprocess.CompletedProcess[str]]

OOM = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 88, in <module>
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
UNKNOWN = """\
Traceback (most recent call last):
  File "train.py", line 9, in check
    raise ValueError("the moon is full")
ValueError: the moon is full
"""


def steps(day: int, last: int, total: int = 100) -> str:
    began = datetime(2026, 11, day, 10, tzinfo=timezone.utc)
    return "".join(
        f"{began + timedelta(seconds=10 * step):%Y-%m-%d %H:%M:%S} INFO step {step}/{total}"
        f" loss {2.5 - step / total:.3f}\n"
        for step in range(1, last + 1)
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Write logs of a finished job, of a job that ran out of memory, and of a job that just ends."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "slurm-1001.out").write_text(steps(10, 100))
    (folder / "slurm-1002.out").write_text(steps(14, 40))
    (folder / "slurm-1002.err").write_text(OOM)
    (folder / "slurm-1003.out").write_text(steps(20, 60))
    return folder


def rows(report: str) -> list[str]:
    """Return the rows of the table without padding between its columns."""
    table = report.partition("\n\n")[0].splitlines()
    return [" ".join(line.split()) for line in table]


def test_table_is_followed_by_the_newest_failed_job(process: Process, logs: Path) -> None:
    result = process("diagnose", "logs/")
    assert (result.returncode, result.stderr) == (1, "")
    assert rows(result.stdout) == [
        "Job Verdict Cause Last step Last written Files",
        "1003 UNFINISHED The log ends mid-run. 60 of 100 2026-11-20 10:10:00 1",
        "▶ 1002 FAILED cuda-oom 40 of 100 2026-11-14 10:06:40 2",
        "1001 FINISHED 100 of 100 2026-11-10 10:16:40 1",
    ]
    assert "The filenames suggest 3 jobs, listed newest first." in result.stdout
    assert "covers 1002, the only job in trouble" in " ".join(result.stdout.split())
    assert "slurm-1002.err:4" in result.stdout and "FAILED   The GPU ran out of memory" in result.stdout
    # the printed command works unchanged, and its report is the same as for the job alone
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("To see another job: ")]
    command = shlex.split(line.removeprefix("To see another job: "))
    assert command == ["stallwatch", "diagnose", "logs/slurm-1003.out"]
    other = process(*command[1:])
    assert other.returncode == 0 and "UNFINISHED" in other.stdout and "Jobs" not in other.stdout


def test_newest_job_is_reported_if_none_failed(process: Process, logs: Path) -> None:
    (logs / "slurm-1002.err").unlink()
    result = process("diagnose", "logs/")
    assert result.returncode == 0
    assert "covers 1003, the newest job, because no job is in trouble." in " ".join(result.stdout.split())


def test_newest_of_several_failed_jobs_is_reported(stallwatch: Stallwatch, logs: Path) -> None:
    (logs / "slurm-1000.out").write_text(steps(21, 30) + UNKNOWN)  # the job was restarted
    result = stallwatch("diagnose", "logs/slurm-*.out", "logs/slurm-1002.err")
    assert result.exit_code == 1
    assert rows(result.stdout)[1].startswith("▶ 1000 FAILED, CAUSE UNCERTAIN ValueError: the moon is")
    assert "newest of 2 jobs in trouble" in " ".join(result.stdout.split())
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("To see another job: ")]
    assert line.endswith("stallwatch diagnose logs/slurm-1002.out logs/slurm-1002.err")


def test_json_of_schema_2_lists_the_jobs(stallwatch: Stallwatch, logs: Path) -> None:
    result = stallwatch("diagnose", "logs", "--json=2")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"], report["primary"]["impact"]) == (1, "failed", "fatal")
    assert [job["verdict"] for job in report["jobs"]] == ["unfinished", "failed", "finished"]
    (logs / "slurm-1002.err").unlink()
    (logs / "slurm-1002.out").unlink()
    assert stallwatch("diagnose", "logs", "--strict").exit_code == 3
    (logs / "slurm-1003.out").unlink()
    assert stallwatch("diagnose", "logs", "--strict").exit_code == 0


def test_json_lists_the_jobs_and_marks_the_reported_one(stallwatch: Stallwatch, logs: Path) -> None:
    result = stallwatch("diagnose", "logs", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["verdict"], report["primary"]["rule"]) == (1, "failed", "cuda-oom")
    assert report["stats"]["files"] == 2
    assert [(job["name"], job["verdict"], job["primary"], job["reported"]) for job in report["jobs"]] == [
        ("1003", "healthy", None, False),
        ("1002", "failed", "cuda-oom", True),
        ("1001", "healthy", None, False),
    ]
    assert report["jobs"][1] == {
        "name": "1002",
        "verdict": "failed",
        "primary": "cuda-oom",
        "confidence": report["primary"]["confidence"],
        "title": report["primary"]["title"],
        "last_step": 40,
        "total_steps": 100,
        "finished": False,
        "last_time": "2026-11-14T10:06:40.000",
        "files": ["logs/slurm-1002.err", "logs/slurm-1002.out"],
        "reported": True,
    }
    alone = json.loads(stallwatch("diagnose", "logs", "--json", "--job", "1002").stdout)
    del report["jobs"], report["stats"]["seconds"], alone["stats"]["seconds"]
    assert alone == report


def test_markdown_and_html_begin_with_the_table(stallwatch: Stallwatch, logs: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    lines = stallwatch("diagnose", "logs", "--markdown", "--html", str(page)).stdout.splitlines()
    assert lines[:3] == ["## Jobs", "", "| Job | Verdict | Cause | Last step | Last written | Files |"]
    assert lines[5].startswith("| **1002** | **FAILED** | **cuda-oom** |")
    html = page.read_text()
    assert html.index("<td>1003</td>") < html.index('<header class="failed">')
    assert '<tr class="shown"><td>1002</td>' in html
    brief = stallwatch("diagnose", "logs", "--brief").stdout.splitlines()
    assert brief[0].startswith("FAILED: ") and brief[-2].startswith("1002 · FAILED · cuda-oom")
    chinese = stallwatch("diagnose", "logs", "--language", "zh").stdout
    assert "从文件名看有 3 个作业" in chinese and "日志停在训练途中" in chinese


def test_together_reads_all_files_as_one_run(stallwatch: Stallwatch, logs: Path) -> None:
    result = stallwatch("diagnose", "logs", "--together", "--json")
    report = json.loads(result.stdout)
    assert "jobs" not in report and report["stats"]["files"] == 4
    assert any("--each" in note for note in report["notes"])
    assert len(json.loads(stallwatch("diagnose", "logs", "--each", "--json").stdout)) == 4


def test_single_job_is_reported_without_a_table(stallwatch: Stallwatch, logs: Path) -> None:
    for item in ("slurm-1001.out", "slurm-1003.out"):
        (logs / item).unlink()
    result = stallwatch("diagnose", "logs", "--json")
    assert "jobs" not in json.loads(result.stdout) and result.exit_code == 1
    assert stallwatch("diagnose", "logs").stdout.startswith(" FAILED ")


@pytest.mark.parametrize(("per_file", "jobs"), [((0, 1), 0), ((0, 2), 0), ((0, 0), 2), ((3, 4), 2)])
def test_files_with_distinct_ranks_belong_to_one_run(
    stallwatch: Stallwatch, tmp_path: Path, per_file: tuple[int, int], jobs: int
) -> None:
    for number, rank in enumerate(per_file):
        lines = [f"[Rank {rank}] {line}" for line in steps(10, 9).splitlines()]
        if per_file == (0, 2):  # two nodes with two ranks each
            lines += [line.replace(f"Rank {rank}", f"Rank {rank + 1}") for line in lines]
        (tmp_path / f"sft-{1001 + number}.out").write_text("".join(f"{line}\n" for line in lines))
    report = json.loads(stallwatch("diagnose", "sft-1001.out", "sft-1002.out", "--json").stdout)
    assert len(report.get("jobs", [])) == jobs


def test_newest_file_is_skipped_if_it_is_not_a_training_log(stallwatch: Stallwatch, logs: Path) -> None:
    (logs / "slurm-1002.err").unlink()
    (logs / "notes.txt").write_text("remember the milk\n")  # the newest file
    result = stallwatch("diagnose", "logs/")
    assert rows(result.stdout)[1].startswith("other files NO TRAINING LOG")
    assert "covers 1003, the newest training job, because no job" in " ".join(result.stdout.split())


def test_suggested_command_is_complete_and_keeps_the_options(
    process: Process, tmp_path: Path, logs: Path
) -> None:
    long = tmp_path / f"{'x' * 90} it's" / "logs"
    long.parent.mkdir()
    logs.rename(long)
    result = process("diagnose", str(long.relative_to(tmp_path)), "--language", "zh")
    (line,) = [line for line in result.stdout.splitlines() if "：stallwatch " in line]
    _, _, command = line.partition("：")
    words = shlex.split(command)
    assert words[2:4] == ["--language", "zh"] and words[-1].endswith("it's/logs/slurm-1003.out")
    assert "未跑完" in process(*words[1:]).stdout


def test_names_with_control_characters_are_not_suggested(stallwatch: Stallwatch, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in (1001, 1002):
        (folder / f"slurm-{number}-\x1b[31m\u202e.out").write_text(OOM)
    result = stallwatch("diagnose", "logs")
    assert "\x1b" not in result.stdout and "\u202e" not in result.stdout
    assert "To see another job: stallwatch diagnose --job 1001 logs" in result.stdout
    (folder / "alert\x1b[31m-master-0.log").write_text(OOM)
    (folder / "dpo-master-0.log").write_text(OOM)
    for form in ("--markdown", "--brief", "--json"):
        assert "\x1b" not in stallwatch("diagnose", "logs", form).stdout


def test_incompatible_options_are_refused(stallwatch: Stallwatch, logs: Path) -> None:
    for options in (["--each", "--together"], ["--job", "1001", "--together"], ["--job", "1001", "--each"]):
        result = stallwatch("diagnose", "logs", *options)
        assert (result.exit_code, result.stdout) == (2, "") and "cannot be combined" in result.stderr
    result = stallwatch("diagnose", "logs", "--job", "99")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no job is called 99; the jobs are 1001, 1002, 1003" in result.stderr
    result = stallwatch("diagnose", "logs/slurm-1001.out", "--job", "1001")
    assert result.exit_code == 2 and "one run" in result.stderr
    result = stallwatch("diagnose", "gone.log", "--job", "1001")
    assert result.exit_code == 2 and "gone.log: no such file" in result.stderr


def test_unreadable_files_of_any_job_are_reported(stallwatch: Stallwatch, logs: Path) -> None:
    (logs / "slurm-1001.out.gz").write_bytes(b"\x1f\x8b\x08\x00 cut off")
    result = stallwatch("diagnose", "logs", "gone.log", "--json")
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["primary"]["rule"] == "cuda-oom"
    for name in ("gone.log", "slurm-1001.out.gz"):
        assert name in result.stderr and any(name in note for note in report["notes"])


def test_empty_log_of_a_starting_job_does_not_change_the_exit_code(
    stallwatch: Stallwatch, logs: Path
) -> None:
    (logs / "slurm-1009.out").write_text("")
    paths = sorted(str(path) for path in logs.iterdir())
    result = stallwatch("diagnose", *paths)
    assert result.exit_code == 1
    assert "slurm-1009.out: the file is empty" in result.stderr and "slurm-1009" not in result.stdout
    assert stallwatch("diagnose", str(logs / "slurm-1009.out")).exit_code == 2


def test_archive_can_contain_several_jobs(stallwatch: Stallwatch, logs: Path, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(logs.iterdir()):
            archive.write(path, f"logs/{path.name}")
    (tmp_path / "all.zip").write_bytes(packed.getvalue())
    result = stallwatch("diagnose", "all.zip")
    assert rows(result.stdout)[2].startswith("▶ 1002 FAILED cuda-oom")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("To see another job: ")]
    assert shlex.split(line)[-5:] == ["stallwatch", "diagnose", "--job", "1003", "all.zip"]
    other = stallwatch("diagnose", "--job", "1003", "all.zip", "--json")
    assert json.loads(other.stdout)["progress"]["last_step"] == 60


def test_standard_input_belongs_to_none_of_the_jobs(stallwatch: Stallwatch, logs: Path) -> None:
    result = stallwatch("diagnose", "-", "logs", stdin=UNKNOWN)
    assert any(line.startswith("▶ 1002") for line in rows(result.stdout))
    assert any(line.startswith("other files FAILED, CAUSE") for line in rows(result.stdout))
    assert "To see another job: stallwatch diagnose logs/slurm-1003.out" in result.stdout
    assert "jobs" not in json.loads(stallwatch("diagnose", "-", "--json", stdin=UNKNOWN).stdout)


def test_each_job_is_compared_with_the_baseline(stallwatch: Stallwatch, logs: Path, tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(steps(1, 100))
    (logs / "slurm-1002.err").write_text("the pump of shard 3 stopped\n" + UNKNOWN)
    report = json.loads(stallwatch("diagnose", "logs", "--json", "--baseline", "good.log").stdout)
    assert [item["template"] for item in report["new_lines"]] == ["the pump of shard <n> stopped"]


def test_newest_job_is_chosen_by_file_time_or_else_by_number(stallwatch: Stallwatch, tmp_path: Path) -> None:
    for number, age in ((1001, 10.0), (1002, 1000.0)):
        log = tmp_path / f"slurm-{number}.out"
        log.write_text(OOM)
        os.utime(log, (1.8e9 - age, 1.8e9 - age))
    report = json.loads(stallwatch("diagnose", "slurm-1001.out", "slurm-1002.out", "--json").stdout)["jobs"]
    assert [(job["name"], job["reported"]) for job in report] == [("1001", True), ("1002", False)]
    assert report[0]["last_time"] == "2027-01-15T07:59:50.000Z"
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for number in (1001, 1002):
            archive.writestr(f"slurm-{number}.out", OOM)
    report = json.loads(stallwatch("diagnose", "x.zip", "--json").stdout)["jobs"]
    assert [(job["name"], job["last_time"]) for job in report] == [("1002", None), ("1001", None)]


def test_run_folders_are_separate_jobs(stallwatch: Stallwatch, tmp_path: Path) -> None:
    for day, name in ((10, "sft"), (12, "dpo")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        started = datetime(2026, 11, day, tzinfo=timezone.utc).timestamp()
        info = AgentInfo(
            run=name, pid=1, host="a", command=["train"], cwd="/", started_at=started, updated_at=started + 9
        )
        (folder / "agent.json").write_bytes(msgspec.json.encode(info))
        (folder / "output.log").write_text(steps(day, 40))
    result = stallwatch("diagnose", "runs/")
    assert rows(result.stdout)[1].startswith("▶ dpo UNFINISHED")  # the state in the run's folder is shown
    assert "To see another job: stallwatch diagnose runs/sft" in result.stdout
    assert "UNFINISHED" in stallwatch("diagnose", "runs/sft").stdout


def test_folders_of_agents_of_one_run_are_one_job(stallwatch: Stallwatch, tmp_path: Path) -> None:
    started = datetime(2026, 11, 10, tzinfo=timezone.utc).timestamp()
    for name, host, key in (("sft-1.0", "a", "1"), ("sft-1.0@b", "b", "1"), ("sft-2.0", "c", "2")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        info = AgentInfo(
            run=name.partition("@")[0],
            pid=1,
            host=host,
            command=["train", f"--on={host}"],
            cwd=f"/{host}",
            started_at=started,
            updated_at=started + 9,
            key=key,
        )
        (folder / "agent.json").write_bytes(msgspec.json.encode(info))
        (folder / "output.log").write_text(steps(10, 40))
    report = json.loads(stallwatch("diagnose", "runs", "--json").stdout)["jobs"]
    assert sorted((job["name"], len(job["files"])) for job in report) == [("sft-1.0", 2), ("sft-2.0", 1)]


def test_python_function_returns_one_diagnosis(logs: Path) -> None:
    found = package.diagnose(logs)
    assert found.primary is not None and found.primary.rule == "cuda-oom" and found.stats.files == 2
    assert found.notes[0].startswith("The filenames suggest 3 jobs")
    assert package.diagnose(logs, job="1003").progress.last_step == 60
    assert package.diagnose(logs, together=True).stats.files == 4
    with pytest.raises(ValueError, match="no job is called 7; the jobs are 1001, 1002, 1003"):
        package.diagnose(logs, job="7")


def test_table_and_memory_are_bounded_for_many_jobs(
    stallwatch: Stallwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(60):
        text = steps(1 + number // 3, 3) + (OOM if number % 3 == 0 else "")
        (folder / f"slurm-{2001 + number}.out").write_text(text)
    most = 0
    real = several_jobs._Kept.take

    def take(self: Any, *arguments: Any) -> None:
        nonlocal most
        real(self, *arguments)
        most = max(most, len(self._best))

    monkeypatch.setattr(several_jobs._Kept, "take", take)
    result = stallwatch("diagnose", "many")
    assert result.exit_code == 1 and most == 2
    table = rows(result.stdout)
    assert table[-1] == "… and 40 older jobs: 26 UNFINISHED, 14 FAILED" and len(table) == 22
    assert len(json.loads(stallwatch("diagnose", "many", "--json").stdout)["jobs"]) == 60
