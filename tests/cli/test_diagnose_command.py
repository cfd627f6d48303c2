"""``stallwatch diagnose``: formats of the report, exit codes, bad input."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import stallwatch as package
from stallwatch_logs import parallel_reading
from stallwatch_logs.parallel_reading import Parallel
from stallwatch_rules.records import Diagnosis

Stallwatch = Callable[..., Result]
Process = Callable[..., subprocess.CompletedProcess[str]]

OOM = """\
[rank7]: Traceback (most recent call last):
[rank7]:   File "/home/u/train.py", line 88, in <module>
[rank7]:     loss = model(batch)
[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""
HEALTHY = "".join(f"{{'loss': 0.{9 - n}, 'epoch': 0.{n}}}\n" for n in range(1, 9))
UNKNOWN = """\
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    check(config)
  File "train.py", line 9, in check
    raise ValueError("the moon is full")
ValueError: the moon is full
"""


@pytest.mark.parametrize(
    ("text", "verdict", "code"),
    [
        (OOM, "failed", 1),
        (UNKNOWN, "unknown-failure", 1),
        (HEALTHY, "healthy", 0),
        ("hello\n", "no-training-log", 0),
    ],
)
def test_verdict_determines_the_exit_code(stallwatch: Stallwatch, text: str, verdict: str, code: int) -> None:
    result = stallwatch("diagnose", "-", "--json", stdin=text)
    assert (json.loads(result.stdout)["verdict"], result.exit_code) == (verdict, code)
    assert result.stderr == ""


STEPS = "".join(f"step {n}/9 loss 0.{n}\n" for n in range(1, 10))
CTRL_C = "Traceback (most recent call last):\nKeyboardInterrupt\n"
CANCELLED = "slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2026-05-02T10:00:00 {}***\n"
ASKED = "[rank: 0] Received SIGTERM: 15\n"


@pytest.mark.parametrize(
    ("text", "verdict", "by", "code", "strict"),
    [
        (STEPS, "finished", None, 0, 0),
        (STEPS[:60] + CTRL_C, "interrupted", "user", 0, 0),
        (STEPS[:60] + ASKED, "interrupted", "signal", 0, 1),
        (STEPS[:60] + CANCELLED.format("DUE TO TIME LIMIT "), "interrupted", "time-limit", 1, 1),
        (HEALTHY, "unfinished", None, 0, 3),
        ("***** Running training *****\n", "no-evidence", None, 0, 3),
        ("hello\n", "no-training-log", None, 0, 3),
        (OOM, "failed", None, 1, 1),
    ],
)
def test_schema_2_and_strict_distinguish_missing_evidence(
    stallwatch: Stallwatch, text: str, verdict: str, by: str | None, code: int, strict: int
) -> None:
    found = stallwatch("diagnose", "-", "--json=2", stdin=text)
    report = json.loads(found.stdout)
    assert (report["schema"], report["verdict"], report["interrupted_by"]) == (2, verdict, by)
    codes = [
        stallwatch("diagnose", "-", *options, stdin=text).exit_code
        for options in (["--brief"], ["--json"], ["--json=1"], ["--strict"])
    ]
    assert [found.exit_code, *codes] == [strict, code, code, code, strict]


def test_schema_and_path_arguments_are_not_confused(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "--json=2").write_text(OOM)
    assert json.loads(stallwatch("diagnose", "--json", "--", "--json=2").stdout)["schema"] == 1
    refused = stallwatch("diagnose", "--json=3", "-", stdin=OOM)
    assert refused.exit_code == 2 and "--json=3: the schema must be 1 or 2" in refused.stderr
    both = stallwatch("diagnose", "--each", "--json=2", "--", "--json=2")
    assert [load["diagnosis"]["schema"] for load in json.loads(both.stdout)] == [2]


def test_process_returns_the_exit_code_of_the_verdict(process: Process, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OOM)
    result = process("diagnose", "train.log")
    assert (result.returncode, result.stderr) == (1, "")
    assert "CUDA out of memory" in result.stdout
    assert "\x1b" not in result.stdout
    assert not any(line.endswith(" ") for line in result.stdout.splitlines())


def test_json_report_has_the_documented_fields(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OOM)
    report = json.loads(stallwatch("diagnose", "train.log", "--json").stdout)
    assert report["schema"] == 1
    primary = report["primary"]
    assert (primary["rule"], primary["rank"], primary["harm"]) == ("cuda-oom", 7, "fatal")
    assert Path(primary["file"]).name == "train.log" and primary["line"] == 4
    assert primary["fixes"] and primary["why"] and primary["evidence"]
    assert {"findings", "unknown", "progress", "environment", "stats"} <= report.keys()


def test_report_can_be_markdown_chinese_or_written_to_a_file(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OOM)
    result = stallwatch("diagnose", "train.log", "--markdown", "-o", "report.md")
    assert (result.exit_code, result.stdout) == (1, "")
    assert (tmp_path / "report.md").read_text().startswith("## ")
    chinese = stallwatch("diagnose", "train.log", "--language", "zh")
    assert "显存不足" in chinese.stdout
    unwritable = stallwatch("diagnose", "train.log", "-o", "missing/report.md")
    assert unwritable.exit_code == 2
    assert "stallwatch: missing/report.md: cannot be written" in unwritable.stderr


def test_own_messages_in_the_log_are_not_evidence(stallwatch: Stallwatch) -> None:
    said = "stallwatch:       torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    result = stallwatch("diagnose", "-", "--json", stdin=HEALTHY + said + HEALTHY)
    assert (json.loads(result.stdout)["verdict"], result.exit_code) == ("healthy", 0)


def test_unreadable_inputs_are_reported_and_the_rest_is_diagnosed(
    stallwatch: Stallwatch, tmp_path: Path
) -> None:
    (tmp_path / "good.log").write_text(OOM)
    (tmp_path / "bad.log.gz").write_bytes(gzip.compress(OOM.encode())[:-20])
    (tmp_path / "core.1234").write_bytes(bytes(range(256)) * 64)
    result = stallwatch("diagnose", "good.log", "bad.log.gz", "core.1234", "none.log", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["primary"]["rule"] == "cuda-oom"
    for name in ("bad.log.gz", "core.1234", "none.log"):
        assert name in result.stderr
    assert all(line.startswith("stallwatch: ") for line in result.stderr.splitlines())


def test_missing_log_is_an_error(stallwatch: Stallwatch) -> None:
    result = stallwatch("diagnose", "none.log")
    assert result.exit_code == 2
    assert "none.log" in result.stderr


def test_invalid_configuration_does_not_prevent_the_diagnosis(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OOM)
    (tmp_path / "stallwatch.toml").write_text("[exporter]\nport = 'x'\n[ui]\nlanguage = 'zh'\n")
    result = stallwatch("diagnose", "train.log")
    assert result.exit_code == 2
    assert "stallwatch.toml:2: exporter.port" in result.stderr
    assert "显存不足" in result.stdout  # the valid part of the file is applied
    (tmp_path / "stallwatch.toml").unlink()
    page = tmp_path / "mine" / "house" / "broken.md"
    page.parent.mkdir(parents=True)
    page.write_text("---\nid: broken\n---\n")
    result = stallwatch("diagnose", "train.log", "--rules", "mine")
    assert result.exit_code == 2
    assert "broken.md:" in result.stderr
    assert "CUDA out of memory" in result.stdout


def test_python_function_accepts_paths_and_lists_of_paths(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(OOM)
    for paths in (tmp_path, str(tmp_path), [tmp_path / "train.log"]):
        diagnosis = package.diagnose(paths)
        assert isinstance(diagnosis, Diagnosis) and isinstance(diagnosis, package.Diagnosis)
        assert diagnosis.primary is not None and diagnosis.primary.rule == "cuda-oom"
    assert "显存不足" in package.diagnose(tmp_path, "zh").primary.title  # type: ignore[union-attr]
    assert "none.log" in " ".join(package.diagnose("none.log").notes)
    with pytest.raises(AttributeError):
        _ = package.nothing


STEPS = "".join(f"step {n}/90 loss 1.5\n" for n in range(1, 9))
PUMP = "the pump of shard {} stopped\n"


def test_baseline_reveals_lines_that_a_healthy_run_lacks(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "dead.log").write_text(PUMP.format(3) + STEPS + UNKNOWN)
    (tmp_path / "good.log").write_text(STEPS)

    def new(*options: str) -> list[str]:
        result = stallwatch("diagnose", "dead.log", "--json", *options)
        assert (result.exit_code, result.stderr) == (1, "")
        return [load["template"] for load in json.loads(result.stdout)["new_lines"]]

    assert new() == []
    assert new("--baseline", "good.log") == ["the pump of shard <n> stopped"]
    twin = package.diagnose(tmp_path / "dead.log", baseline=tmp_path / "good.log")
    assert [new_line.template for new_line in twin.new_lines] == ["the pump of shard <n> stopped"]
    (tmp_path / "good.log").write_text(PUMP.format(99) + STEPS)
    assert new("--baseline", "good.log") == []


def test_unusable_baseline_is_reported(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "dead.log").write_text(UNKNOWN)
    result = stallwatch("diagnose", "dead.log", "--baseline", "dead.log")
    assert result.exit_code == 1
    assert "this run is not healthy (unknown-failure)" in result.stderr
    missing = stallwatch("diagnose", "dead.log", "--baseline", "gone.log")
    assert missing.exit_code == 2
    assert "gone.log: no such file" in missing.stderr
    assert "not healthy" not in missing.stderr


def test_without_readable_input_only_the_reason_is_printed(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = stallwatch("diagnose", "gone.log", "empty")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "gone.log: no such file" in result.stderr and "no log files" in result.stderr
    (tmp_path / "good.log").write_text(STEPS)
    assert "UNFINISHED" in stallwatch("diagnose", "gone.log", "good.log").stdout


def test_jobs_option_sets_the_number_of_processes(
    stallwatch: Stallwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dead.log").write_text(UNKNOWN)
    (tmp_path / "good.log").write_text(STEPS)
    asked: list[Parallel] = []
    real = parallel_reading.read_all

    def read_all(files: Any, reading: Any, *, parallel: Parallel, **options: Any) -> Any:
        asked.append(parallel)
        return real(files, reading, parallel=parallel, **options)

    monkeypatch.setattr("stallwatch_exporter.postmortem.diagnose.read_all", read_all)
    monkeypatch.setattr("stallwatch_logs.parallel_reading.read_all", read_all)
    assert stallwatch("diagnose", "dead.log", "--baseline", "good.log", "--workers", "3").exit_code == 1
    assert [parallel.workers for parallel in asked] == [3, 3]
    assert stallwatch("diagnose", "dead.log").exit_code == 1
    assert asked[-1].workers == parallel_reading.default_workers()
    assert stallwatch("diagnose", "dead.log", "--workers", "0").exit_code == 2
    with ThreadPoolExecutor(1) as executor:
        twin = package.diagnose(tmp_path / "dead.log", workers=2, executor=executor)
    assert (twin.verdict, asked[-1].workers, asked[-1].executor) == ("unknown-failure", 2, executor)


def test_html_report_is_written_in_addition_to_the_printed_report(
    stallwatch: Stallwatch, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    result = stallwatch("diagnose", "-", "--html", str(page), stdin=OOM)
    assert result.exit_code == 1 and "cuda-oom" in result.stdout
    assert page.read_text().startswith("<!doctype html>") and "cuda-oom" in page.read_text()
    result = stallwatch("diagnose", "-", "--html", str(tmp_path / "no/folder.html"), stdin=OOM)
    assert result.exit_code == 2 and "cannot be written" in result.stderr


def test_each_prints_a_verdict_per_file(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.log").write_text(OOM)
    (tmp_path / "runs" / "b.log").write_text(HEALTHY)
    result = stallwatch("diagnose", "--each", "runs")
    assert result.exit_code == 1
    first, about, second, *_ = result.stdout.splitlines()
    assert first.startswith("runs/a.log  FAILED")
    assert about.startswith("  cuda-oom: ")
    assert second.startswith("runs/b.log  UNFINISHED")
    records = json.loads(stallwatch("diagnose", "--each", "runs", "--json").stdout)
    assert [(record["file"], record["diagnosis"]["verdict"]) for record in records] == [
        ("runs/a.log", "failed"),
        ("runs/b.log", "healthy"),
    ]
    table = stallwatch("diagnose", "--each", "runs", "--markdown").stdout.splitlines()
    assert table[0] == "| File | Verdict | Cause | Progress |"
    assert len(table) == 4
    assert stallwatch("diagnose", "--each", "runs/b.log").exit_code == 0
    assert stallwatch("diagnose", "--each", "runs", "nothing-here.log").exit_code == 2
    assert stallwatch("diagnose", "--each", "runs", "--html", "x.html").exit_code == 2


def test_long_common_folder_is_shown_once_above_the_verdicts(stallwatch: Stallwatch, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 10)
    folder.mkdir()
    (folder / "a.log").write_text(OOM)
    (folder / f"{'b' * 50}.log").write_text(HEALTHY)
    first, second, _, third, _ = stallwatch("diagnose", "--each", str(folder)).stdout.splitlines()
    assert first == f"Files in {folder}/"
    assert second.startswith(f"{'a.log':40}  FAILED") and len(second) <= 80
    assert third.startswith(f"{'b' * 50}.log  UNFINISHED")


def test_brief_report_has_four_lines(stallwatch: Stallwatch) -> None:
    lines = stallwatch("diagnose", "-", "--brief", stdin=OOM).stdout.splitlines()
    assert lines[0].startswith("FAILED: ")
    assert "cuda-oom" in lines[1]
    assert lines[2].startswith("  | torch.OutOfMemoryError")
    assert len(lines) == 4


def test_explain_shows_how_the_verdict_was_reached(stallwatch: Stallwatch) -> None:
    text = stallwatch("diagnose", "-", "--explain", stdin=OOM).stdout
    output = text.partition("How the verdict was reached")[2].split()
    assert output[:4] == ["matches", "+", "cuda-oom", "(cause,"]
    assert output[output.index("Root") :][:3] == ["Root", "cause", "cuda-oom"]
    report = json.loads(stallwatch("diagnose", "-", "--explain", "--json", stdin=OOM).stdout)
    assert report["explained"][0]["assessor"] == "matches"
    assert "explained" not in json.loads(stallwatch("diagnose", "-", "--json", stdin=OOM).stdout)
    assert (
        "--explain works only for a single report"
        in stallwatch("diagnose", "-", "--explain", "--brief", stdin=OOM).stderr
    )


def test_report_formats_exclude_each_other(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1/2 loss 0.5\n")
    result = stallwatch("diagnose", "train.log", "--json", "--markdown")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json and --markdown cannot be combined" in result.stderr


def test_binary_file_is_refused(stallwatch: Stallwatch, tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(128, 256)) * 40)
    result = stallwatch("diagnose", "noise.bin")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "noise.bin: this is a binary file, not a log" in result.stderr
    (tmp_path / "notes.txt").write_text("bread, milk\n")
    result = stallwatch("diagnose", "notes.txt")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "NO TRAINING LOG" in result.stdout
