"""Diagnosis of an ended run's logs, from paths or uploads."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from subprocess import run
from typing import Any

import msgspec
import pytest

from stallwatch_exporter.incident import Incident, Resolution
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths, diagnose_run
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_logs.log_files import from_stream
from stallwatch_logs.parallel_reading import read_baseline
from stallwatch_rules import reading
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import rendered
from stallwatch_rules.messages import message
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Primary, Progress, Stats

OOM = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/srv/job/train.py", line 40, in <module>\n'
    "[rank{rank}]:     engine.backward(loss)\n"
    "[rank{rank}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a "
    "total capacity of 79.11 GiB of which 1.32 GiB is free. Process 4711 has 77.78 GiB memory in use.\n"
)
STEPS = "".join(f"step {n}/100 loss {2 / n:.4f}\n" for n in range(1, 41))
BAR = "".join(f"\r{n}%|#         | {n}/100 [00:{n:02}<01:00,  1.00s/it]" for n in range(1, 41)) + "\n"


def essence(diagnosis: Diagnosis) -> object:
    """Return the parts of a diagnosis that do not depend on the file's name or the reading time."""
    findings = [(f.rule, f.harm, f.count, f.ranks) for f in diagnosis.findings]
    primary = diagnosis.primary
    return (diagnosis.verdict, primary and (primary.rule, primary.rank), findings, diagnosis.progress)


def test_folder_of_a_tail_without_output_names_the_followed_files(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    folder = RunFolder.create("sft", ["stallwatch", "tail", "logs/*.log", "/srv/b.log"], home=tmp_path)
    _, (problem,) = diagnose_paths([folder.path], Options(catalogue))
    assert f"followed: {folder.info.cwd}/logs/*.log, /srv/b.log" in str(problem)
    other = RunFolder.create("other", ["python", "train.py"], home=tmp_path)
    _, (problem,) = diagnose_paths([other.path], Options(catalogue))
    assert "follows" not in str(problem)


def test_rank_with_an_empty_log_is_named(tmp_path: Path, catalogue: Catalogue) -> None:
    for rank in range(4):
        folder = tmp_path / f"run_k2l1abcd/attempt_0/{rank}"
        folder.mkdir(parents=True)
        text = "Timed out waiting 12000ms for recv operation to complete"
        text = f"Traceback (most recent call last):\nRuntimeError: [../gloo/pair.cc:78] {text}\n"
        (folder / "stderr.log").write_text("" if rank == 3 else text)
    shutil.make_archive(str(tmp_path / "logs"), "zip", tmp_path, "run_k2l1abcd")
    for path in (tmp_path / "run_k2l1abcd", tmp_path / "logs.zip"):
        found, _ = diagnose_paths([path], Options(catalogue))
        assert rendered(found).primary.title.endswith("did not join it: rank 3")


def test_starts_are_separated_in_one_log_and_not_in_several(tmp_path: Path, catalogue: Catalogue) -> None:
    """One of several files may show starts that the others do not show, so no diagnosis mixes them."""
    head = "starting my program\nfound 812 shards\nthe model is ready\nthe rate is 0.1 now\n"
    error = OOM.replace("[rank{rank}]: ", "").format(rank=0)
    (tmp_path / "rank0.log").write_text(head + STEPS + error + head + STEPS)
    (tmp_path / "rank1.log").write_text("")
    assert [start.verdict for start in diagnose_paths([tmp_path], Options(catalogue))[0].starts] == [
        "unfinished",
        "failed",
    ]
    (tmp_path / "rank1.log").write_text(STEPS)
    assert diagnose_paths([tmp_path], Options(catalogue))[0].starts == []


def test_folder_of_files_per_rank_is_diagnosed(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "rank0.stdout.log").write_text(STEPS)
    (tmp_path / "rank0.stderr.log").write_text(BAR)
    (tmp_path / "rank7.stderr.log").write_text(OOM.replace("[rank{rank}]: ", "").format(rank=7))
    given: list[tuple[int, int]] = []
    diagnosis, problems = rendered(
        diagnose_paths(
            [tmp_path], Options(catalogue, progress=lambda done, total: given.append((done, total)))
        )
    )
    assert problems == []
    assert diagnosis.verdict == "failed"
    assert diagnosis.primary is not None
    assert (diagnosis.primary.rule, diagnosis.primary.rank) == ("cuda-oom", 7)
    assert diagnosis.primary.file == str(tmp_path / "rank7.stderr.log")
    assert diagnosis.primary.line == 4
    progress = diagnosis.progress
    assert (progress.first_step, progress.last_step, progress.total_steps) == (1, 40, 100)
    assert progress.last_loss == 0.05
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert (diagnosis.stats.files, diagnosis.stats.bytes, diagnosis.stats.lines) == (3, size, 40 + 1 + 4)
    assert diagnosis.stats.seconds > 0
    assert given[-1] == (size, size) and given == sorted(given)


def test_interleaved_file_gives_the_same_diagnosis_as_files_per_rank(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    crashed = OOM.format(rank=1).splitlines(keepends=True)
    healthy = [f"[rank0]: {line}" for line in STEPS.splitlines(keepends=True)]
    mixed = (
        healthy[:20]
        + [line for pair in zip(healthy[20:], crashed, strict=False) for line in pair]
        + healthy[24:]
    )
    (tmp_path / "mixed.log").write_text("".join(mixed))
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    (ranks / "rank0.log").write_text(STEPS)
    (ranks / "rank1.log").write_text("".join(crashed))
    one, _ = rendered(diagnose_paths([tmp_path / "mixed.log"], Options(catalogue)))
    many, _ = rendered(diagnose_paths([ranks], Options(catalogue)))
    assert one.verdict == "failed"
    assert essence(one) == essence(many)


def test_uploads_give_the_same_diagnosis_as_paths(tmp_path: Path, catalogue: Catalogue) -> None:
    text = (STEPS + OOM.format(rank=3)).encode()
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(text))
    by_path, _ = rendered(diagnose_paths([tmp_path / "train.log.gz"], Options(catalogue)))
    files, problems = from_stream("train.log", io.BytesIO(text))
    by_stream = rendered(diagnose_run(files, problems, (), Options(catalogue)).diagnosis)
    assert problems == []
    assert essence(by_stream) == essence(by_path)
    assert by_stream.primary is not None and by_stream.primary.file == "train.log"
    assert by_stream.stats.bytes == by_path.stats.bytes == len(text)


def test_unreadable_files_are_reported_and_the_rest_is_diagnosed(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    (tmp_path / "good.log").write_text(OOM.format(rank=0))
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(STEPS.encode())[:-20])
    (tmp_path / "binary.log").write_bytes(b"\x7fELF" + bytes(4096))
    names = ["good.log", "cut.log.gz", "binary.log", "gone.log"]
    diagnosis, problems = rendered(diagnose_paths([tmp_path / name for name in names], Options(catalogue)))
    assert {Path(problem.path).name for problem in problems} == {"cut.log.gz", "binary.log", "gone.log"}
    assert diagnosis.verdict == "failed"
    assert diagnosis.progress.last_step is not None  # read from the intact part of the broken file
    assert {str(problem) for problem in problems} <= set(diagnosis.notes)
    assert diagnosis.stats.files == 2


def test_files_above_the_limit_are_reported(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(12):
        (tmp_path / f"rank{rank}.log").write_text(OOM.format(rank=7) if rank == 7 else STEPS)
    monkeypatch.setattr(reading, "MAX_STREAMS", 9)
    diagnosis, (problem,) = rendered(diagnose_paths([tmp_path], Options(catalogue)))
    assert Path(problem.path).name == "rank9.log" and "skipped this file and 2 other files" in problem.message
    assert diagnosis.verdict == "failed" and str(problem) in diagnosis.notes
    monkeypatch.undo()
    assert rendered(diagnose_paths([tmp_path], Options(catalogue)))[1] == []


def test_text_without_training_gets_no_cause(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "poem.txt").write_text("The woods are lovely, dark and deep,\nBut I have promises to keep.\n")
    diagnosis, problems = rendered(diagnose_paths([tmp_path / "poem.txt"], Options(catalogue)))
    assert (diagnosis.verdict, diagnosis.primary, problems) == ("no-training-log", None, [])


def test_truncated_lines_are_noted(tmp_path: Path, catalogue: Catalogue) -> None:
    (tmp_path / "a.log").write_text(STEPS + "x" * 200_000 + "\n")
    diagnosis, _ = rendered(diagnose_paths([tmp_path / "a.log"], Options(catalogue)))
    assert any("longer than 64 KiB" in note for note in diagnosis.notes)


def test_error_at_the_end_of_a_huge_line_is_found(tmp_path: Path, catalogue: Catalogue) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    (tmp_path / "a.log").write_text(STEPS + "0.125, " * 150_000 + error + "\n")
    diagnosis, _ = rendered(diagnose_paths([tmp_path / "a.log"], Options(catalogue)))
    assert diagnosis.primary is not None
    assert diagnosis.primary.rule == "cuda-oom"
    assert error in diagnosis.primary.evidence[0]
    assert len(diagnosis.primary.evidence[0]) < 600


Record = Callable[[Ending | None], Path]


@pytest.fixture
def recorded(tmp_path: Path) -> Record:
    def make(ending: Ending | None) -> Path:
        folder = RunFolder.create("job", ["python", "train.py"], home=tmp_path, now=1.0)
        lines = "".join(f"2026-11-20T23:56:{n:02}Z stdout F step {n} loss 1.5\n" for n in range(10, 30))
        (folder.path / "ranks" / "rank0.log").write_text(lines)
        folder.write_info(ending=ending)
        return folder.path

    return make


def test_run_folder_provides_the_ending(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(
        Ending(kind="oom-killed", exit_code=137, signal="SIGKILL", detail="The kernel killed it.")
    )
    diagnosis, problems = rendered(diagnose_paths([path], Options(catalogue)))
    assert problems == []
    assert diagnosis.ending == "The kernel killed it."
    assert diagnosis.verdict in ("failed", "unknown-failure")
    assert diagnosis.progress.last_step == 29


@pytest.mark.parametrize(
    ("resolution", "rule"),
    [("run-failed", "silent-hang-no-error"), ("recovered", "secondary-sigterm-cascade")],
)
def test_stall_that_was_open_at_the_end_is_the_cause(
    recorded: Record, catalogue: Catalogue, resolution: Resolution, rule: str
) -> None:
    path = recorded(Ending(kind="killed", exit_code=143, signal="SIGTERM", detail="Ended by SIGTERM."))
    keep(path, incident(HANG, status="resolved", resolved_at=60.0, resolution=resolution))
    diagnosis, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert diagnosis.primary is not None and diagnosis.primary.rule == rule


def test_recorded_cause_is_used_if_no_line_shows_it(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(Ending(kind="failed", exit_code=1, detail="It returned 1."))
    found = incident("finding/rank-gone", note="Rank 1 is gone.")
    died = msgspec.structs.replace(found, kind="ended")
    keep(path, found, died)
    assert any(
        "Rank 1 is gone." in note for note in rendered(diagnose_paths([path], Options(catalogue)))[0].notes
    )
    keep(
        path, found, msgspec.structs.replace(died, updated_at=-1.0)
    )  # stored by an agent before the last one
    assert not any(
        "is gone" in note for note in rendered(diagnose_paths([path], Options(catalogue)))[0].notes
    )


HANG = "stall/silent-hang-no-error"
ENDINGS = {
    "agent killed": None,
    "Ctrl-C": Ending(kind="interrupted", exit_code=130, signal="SIGINT", detail="It was interrupted."),
    "not watched any more": Ending(
        kind="unknown", exit_code=None, detail="Stallwatch stopped watching the run."
    ),
}


def incident(which: str, **facts: Any) -> Incident:
    kind, rule = which.split("/")
    about = {"status": "open", "episode": 1, "opened_at": 30.0, "updated_at": 60.0, "step": 29}
    return Incident(
        **{**about, **facts},
        id=f"job/{which}/1",
        run="job",
        kind=kind,  # type: ignore[arg-type]
        rule=rule,
        severity="critical",
    )


def keep(path: Path, *incidents: Incident) -> None:
    (path / "incidents.jsonl").write_bytes(
        b"".join(msgspec.json.encode(incident) + b"\n" for incident in incidents)
    )


AFTER = {"agent killed": "unfinished", "Ctrl-C": "interrupted", "not watched any more": "unfinished"}


@pytest.mark.parametrize("how", ENDINGS)
def test_unresolved_stall_is_reported_after_any_ending(
    recorded: Record, catalogue: Catalogue, how: str
) -> None:
    path = recorded(ENDINGS[how])
    stall = incident(HANG, stalled_seconds=135.0, threshold_seconds=90.0)
    keep(path, incident(HANG), stall)
    diagnosis, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert diagnosis.verdict == "stalled"
    assert diagnosis.primary is not None and diagnosis.primary.rule == "silent-hang-no-error"
    assert "finished for 2 min 15 s" in diagnosis.findings[0].note
    assert "threshold of this run is 1 min 30 s" in diagnosis.findings[0].note
    assert diagnosis.notes[0].startswith("A stall was reported at 1970-01-01T00:00:30.000Z while")
    chinese, _ = rendered(diagnose_paths([path], Options(catalogue)), "zh")
    assert chinese.notes[0].startswith("监控期间于 1970-01-01T00:00:30.000Z 报告卡住")

    keep(path, stall, incident(HANG, status="resolved", resolved_at=61.0, resolution="recovered"))
    found, _ = diagnose_paths([path], Options(catalogue))
    assert found.verdict == AFTER[how]


@pytest.mark.parametrize(("started", "length"), [("now", "10 min"), ("long ago", "31 s")])
def test_stall_continues_only_while_an_agent_watches(
    recorded: Record, catalogue: Catalogue, started: str, length: str
) -> None:
    path, now = recorded(None), time.time()
    info = msgspec.json.decode((path / "agent.json").read_bytes())
    info["started_at"] = now if started == "now" else 1.0  # the process with this id started later
    info["updated_at"] = info["started_at"]
    (path / "agent.json").write_bytes(msgspec.json.encode(info))
    at = {"opened_at": now - 570, "updated_at": now - 569, "stalled_since": now - 600}
    keep(path, incident(HANG, **at, stalled_seconds=31.0, threshold_seconds=30.0))
    found, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert found.findings[0].note.startswith(f"No step has finished for {length}")
    assert ("and has not ended: no step has finished for 10 min" in found.notes[0]) == (started == "now")


@pytest.mark.parametrize(("quiet", "late"), [(57.0, True), (5.0, False)])
def test_run_stopped_long_after_its_last_step_says_so(
    recorded: Record, catalogue: Catalogue, quiet: float, late: bool
) -> None:
    path = recorded(ENDINGS["Ctrl-C"])
    last = datetime(2026, 11, 20, 23, 56, 29, tzinfo=timezone.utc).timestamp()
    info = msgspec.json.decode((path / "agent.json").read_bytes())
    (path / "agent.json").write_bytes(msgspec.json.encode({**info, "ended_at": last + quiet}))
    (note,) = rendered(diagnose_paths([path], Options(catalogue)))[0].notes
    assert note.startswith("The run was interrupted (Control+C)")
    assert ("57 s after its last step. Steps usually took 1 s" in note) == late


def test_incident_left_by_an_earlier_agent_is_ignored(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(None)
    closed = incident(HANG, status="resolved", resolved_at=0.5, resolution="unknown")
    keep(path, closed)
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].verdict == "unfinished"
    # stored by another run's agent after the end of this run
    keep(path, msgspec.structs.replace(closed, resolved_at=99.0))
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].verdict == "stalled"


def test_cause_reported_only_by_the_probe_explains_the_stall(recorded: Record, catalogue: Catalogue) -> None:
    page = catalogue.pages["rank-left-early"]
    found = Primary(
        rule=page.id,
        title=page.title,
        role="cause",
        harm="fatal",
        confidence=0.9,
        rank=1,
        file="",
        line=0,
        time=None,
        step=20,
        evidence=["Rank 1 exited without an error at step 20"],
        captures={},
        why="It left.",
        fixes=["Look there."],
    )
    path = recorded(None)
    keep(path, incident("stall/rank-left-early", primary=found, stalled_seconds=40.0, threshold_seconds=30.0))
    diagnosis, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert (diagnosis.verdict, diagnosis.primary) == ("stalled", found)


def test_rank_lost_before_the_agent_was_killed_is_reported(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(None)
    gone = incident("finding/rank-gone", step=12, note=message("diagnosis.rank-gone", ranks="1"))
    keep(path, gone)
    diagnosis, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert diagnosis.verdict == "failed"
    assert diagnosis.notes[0].endswith(
        "The process of rank 1 is gone, and the other ranks continue without this rank."
    )
    chinese, _ = rendered(diagnose_paths([path], Options(catalogue)), "zh")
    assert chinese.notes[0].endswith("rank 1 的进程已退出，其余 rank 仍在运行。")

    survived = incident("finding/unknown-failure", step=12, evidence=["ValueError: odd"])
    keep(path, msgspec.structs.replace(gone, status="resolved", resolved_at=40.0, resolution="recovered"))
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].notes[0].startswith("The log stops")
    keep(path, survived)
    # more steps followed
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].verdict == "unfinished"
    keep(path, msgspec.structs.replace(survived, step=29))
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].verdict == "failed"

    with_call = msgspec.structs.replace(survived, evidence=["ValueError: odd", "  train.py:7 in main"])
    keep(path, with_call)
    assert rendered(diagnose_paths([path], Options(catalogue)))[0].notes[0].endswith("ValueError: odd")


def test_run_folder_shows_that_the_run_finished(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(Ending(kind="finished", exit_code=0, detail="The command exited with 0."))
    diagnosis, _ = rendered(diagnose_paths([path], Options(catalogue)))
    assert diagnosis.verdict == "finished"


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "still running"])
def test_steps_and_versions_reported_by_ranks_are_used(
    recorded: Record, catalogue: Catalogue, ended: bool
) -> None:
    path = recorded(
        Ending(kind="failed", exit_code=1, detail="The command exited with 1.") if ended else None
    )
    versions = {"kind": "versions", "rank": 0, "time": 5.0, "torch": "2.6.0", "flash_attn": "2.7.4"}
    (path / "events.jsonl").write_bytes(msgspec.json.encode(versions) + b"\n{broken\n")
    seen = Progress(first_step=1, last_step=34, total_steps=900, last_loss=1.25)  # the log shows 10 to 29
    printed = Diagnosis("unknown-failure", progress=seen, stats=Stats(lines=20))
    (path / "diagnosis.json").write_bytes(msgspec.json.encode(printed))
    found, _ = diagnose_paths([path], Options(catalogue))
    assert found.environment == {"torch": "2.6.0", "flash-attn": "2.7.4"}
    steps = (found.progress.first_step, found.progress.last_step, found.progress.total_steps)
    assert steps == ((1, 34, 900) if ended else (10, 29, None))
    assert found.progress.last_loss == (1.25 if ended else 1.5)
    stepless = Diagnosis("unknown-failure", stats=Stats(lines=20))  # by an older release
    (path / "diagnosis.json").write_bytes(msgspec.json.encode(stepless))
    found, _ = diagnose_paths([path], Options(catalogue))
    assert (found.progress.last_step, found.progress.last_loss) == (29, 1.5)


def test_run_folder_without_an_ending_is_read_as_logs(recorded: Record, catalogue: Catalogue) -> None:
    path = recorded(None)
    info = msgspec.json.decode((path / "agent.json").read_bytes())
    for started, what in (
        (1.0, "is from 1970-01-01T00:00:01.000Z"),
        (time.time(), "still being watched"),
    ):
        (path / "agent.json").write_bytes(msgspec.json.encode({**info, "started_at": started}))
        found, _ = rendered(diagnose_paths([path], Options(catalogue)))
        assert found.ending == "" and any(what in note for note in found.notes)
    now = time.time()
    quiet = {"started_at": now, "updated_at": now, "quiet_since": now - 1500, "threshold": 1800.0}
    (path / "agent.json").write_bytes(msgspec.json.encode({**info, **quiet}))
    (_, note) = rendered(diagnose_paths([path], Options(catalogue)))[0].notes
    assert note == "There has been no sign of progress for 25 min. Stallwatch reports a stall after 30 min."
    (path / "agent.json").write_text("{broken")
    diagnosis, problems = rendered(diagnose_paths([path], Options(catalogue)))
    assert (diagnosis.ending, diagnosis.progress.last_step, problems) == ("", 29, [])


def test_plain_logs_are_read_without_loading_decompressors(tmp_path: Path) -> None:
    """Loading them costs start-up time that most diagnoses do not need."""
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    lazy = ("zstandard", "tarfile", "lzma", "stallwatch_exporter.runs.runfolder")
    code = (
        "import sys; from stallwatch_logs.log_files import expand; print(len(expand(['.'])[0]), end=' '); "
        f"print([name for name in {lazy} if name in sys.modules])"
    )
    done = run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
        cwd=tmp_path,
    )
    assert (done.stdout.strip(), done.stderr) == ("1 []", "")


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}


def test_baseline_includes_messages_from_the_middle_of_its_log(tmp_path: Path) -> None:
    from stallwatch_rules.pages.catalogue import load_catalogue

    catalogue = load_catalogue()
    steps = "".join(f"step {step}/90000 loss 1.5\n" for step in range(1, 20_000))
    (tmp_path / "good.log").write_text(steps + "wrote part 5 of the archive to the shelf\n" + steps)
    healthy = read_baseline([tmp_path / "good.log"], catalogue=catalogue)
    assert any("archive to the shelf" in known.first.text for known in healthy.baseline.exemplars.values())


DUMPS = Path(__file__).parents[2] / "logs/flight_recorder"


def test_flight_recorder_dumps_without_logs_are_diagnosed(catalogue: Catalogue) -> None:
    found, problems = diagnose_paths([DUMPS], Options(catalogue))
    assert (found.verdict, problems) == ("stalled", [])
    assert found.primary is not None and (found.primary.rule, found.primary.rank) == (
        "silent-hang-no-error",
        1,
    )


def test_dumps_reveal_the_rank_missing_in_the_logs(tmp_path: Path, catalogue: Catalogue) -> None:
    """Ranks 0 and 2 report a timeout; dumps of another day do not change a healthy run's report."""
    logs = tmp_path / "logs"
    shutil.copytree(DUMPS, logs)
    line = (
        "[rank{0}]:[E1126 10:00:00.000 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
        "Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
    )
    for rank in (0, 2):
        (logs / f"rank_{rank}.log").write_text(line.format(rank))
    found = diagnose_paths([logs], Options(catalogue))[0]
    assert found.verdict == "failed" and found.primary is not None and found.primary.rank == 1
    for rank in (0, 2):
        (logs / f"rank_{rank}.log").write_text("step 1/2 loss 2.0\nstep 2/2 loss 1.0\nTraining completed.\n")
    assert not diagnose_paths([logs], Options(catalogue))[0].digest
