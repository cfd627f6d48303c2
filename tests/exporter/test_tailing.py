"""`stallwatch tail`: old lines cause no alarm, new lines do; a restart counts no line twice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stallwatch_alerts.messages.compose import render
from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.runs.runfolder import RunFolder, list_runs, read_record
from stallwatch_exporter.settings import ExporterSettings, JoinSettings
from stallwatch_exporter.tailing.follow import POSITIONS, Follower, tail_files
from stallwatch_exporter.tailing.tail import FileChunk, FileTailer, Position
from stallwatch_exporter.tailing.tailset import TailSet
from stallwatch_exporter.watching.opening import clock_shift, outlook, read_history, shift_note, summary
from stallwatch_rules.endings import Ending
from stallwatch_rules.messages import has
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis, Stats

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
OOM += "79.11 GiB of which 1.02 GiB is free."


def stamped(start: float, first: int, last: int, seconds: float) -> str:
    """Return lines of steps with their own times."""
    lines = []
    for step in range(first, last + 1):
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start + step * seconds))
        lines.append(f"{moment},000 - INFO - step {step}/500 loss {1 / step:.3f}\n")
    return "".join(lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "rank0.log"


def begin(run: Any, log: Path) -> tuple[TailSet, Follower, Diagnosis]:
    """Take over the run that writes `log`, with simulated time."""
    files = TailSet([str(log.parent / "*.log")])
    files.discover()
    diagnosis, *_ = read_history(run.agent, files)
    run.agent.tick(run.now)
    return files, Follower(run.agent, files, clock=lambda: run.now), diagnosis


def append(log: Path, text: str) -> None:
    with log.open("a") as out:
        out.write(text)


def test_history_sets_the_threshold_and_opens_no_incident(run: Any, log: Path) -> None:
    start = run.now - 170
    append(log, stamped(start, 1, 30, 4.0) + OOM + "\n" + stamped(start, 31, 42, 4.0))
    os.utime(log, (run.now - 2, run.now - 2))
    files, follower, diagnosis = begin(run, log)
    assert run.sent == []
    assert (diagnosis.progress.last_step, diagnosis.progress.total_steps) == (42, 500)
    assert run.metric("stallwatch_stall_threshold_seconds{phase=train}") == 30.0
    assert run.metric("stallwatch_log_lines_total") == 43
    assert "at step 42 of 500" in summary(run.agent, diagnosis, len(files.tailers), 0)

    run.wait(2)
    append(log, "step 43/500 loss 0.02\n")
    follower.step({log})
    run.wait(29)
    assert run.sent == []
    run.wait(3)
    assert [incident.id for incident in run.sent] == ["sft/stall/silent-hang-no-error/1"]


def test_stalled_run_is_reported_at_once(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 1000, 1, 20, 4.0))
    os.utime(log, (run.now - 900, run.now - 900))
    begin(run, log)
    (stall,) = run.sent
    assert (stall.kind, stall.step) == ("stall", 20)
    assert stall.stalled_seconds == pytest.approx(900, abs=2)


def test_age_comes_from_the_file_without_timestamps(run: Any, log: Path) -> None:
    append(log, "".join(f"step {step}/500 loss 0.5\n" for step in range(1, 20)))
    os.utime(log, (run.now - 1700, run.now - 1700))
    begin(run, log)
    assert run.sent == []  # the pace is unknown, so the long start threshold holds
    run.wait(101)
    assert [incident.kind for incident in run.sent] == ["stall"]


def test_printed_step_times_set_the_threshold_without_timestamps(run: Any, log: Path) -> None:
    line = " iteration {}/ 500 | elapsed time per iteration (ms): 4000.0 | lm loss: 2.0E+00 |\n".format
    append(log, "".join(map(line, range(1, 40))))
    os.utime(log, (run.now - 20, run.now - 20))
    begin(run, log)
    assert "no sign of progress for 20 s; a stall is reported after 30 s" in outlook(run.agent)
    run.wait(9)
    assert run.sent == []
    run.wait(2)
    assert [incident.kind for incident in run.sent] == ["stall"]


def test_tail_reports_its_threshold_before_it_is_learned(run: Any, log: Path) -> None:
    append(log, "".join(f"step {step}/500 loss 0.5\n" for step in range(1, 20)))
    os.utime(log, (run.now - 600, run.now - 600))
    begin(run, log)
    waits = (
        "no sign of progress for 10 min; a stall is reported after 30 min "
        "(until the duration of a step is known)"
    )
    assert waits in outlook(run.agent)


def test_other_time_zone_is_corrected(run: Any, log: Path) -> None:
    eight_hours = 8 * 3600
    append(log, stamped(run.now + eight_hours - 80, 1, 20, 4.0))
    os.utime(log, (run.now, run.now))
    tailer = FileTailer(log)
    assert clock_shift(tailer) == pytest.approx(-eight_hours, abs=1)
    _, follower, _ = begin(run, log)
    run.wait(4)  # as long as the earlier steps, so the pace stays even
    append(log, "step 21/500 loss 0.02\n")
    follower.step({log})
    assert run.metric("stallwatch_step") == 21
    run.wait(29)
    assert run.sent == []
    run.wait(2)
    assert len(run.sent) == 1


@pytest.mark.parametrize("shift", [0.0, -8 * 3600.0, 5.75 * 3600 + 20, -3600.0 - 30])
def test_time_zone_correction_is_not_reported(shift: float) -> None:
    assert shift_note(shift) == ""


@pytest.mark.parametrize(("shift", "by"), [(366 * 86400.0, "366 days later"), (-500.0, "8 min 20 s earlier")])
def test_other_time_correction_is_reported(run: Any, log: Path, shift: float, by: str) -> None:
    append(log, stamped(run.now - 80 - shift, 1, 20, 4.0))
    os.utime(log, (run.now, run.now))
    _, _, diagnosis = begin(run, log)
    assert by in summary(run.agent, diagnosis, 1, 0, clock_shift(FileTailer(log)))


def test_small_clock_difference_is_ignored(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 80, 1, 20, 4.0))
    os.utime(log, (run.now + 20, run.now + 20))
    assert clock_shift(FileTailer(log)) == 0.0


def test_timestamps_after_a_prefix_are_corrected(run: Any, log: Path) -> None:
    """The prefix is not on a list: the prefix is learned, and so is the time in it."""
    lines = [f"step {step}/500 loss 0.5" for step in range(1, 20)]
    found = "2026-11-20 10:00:{at:02} {line}".format
    text = [*(found(at=at, line=line) for at, line in enumerate(lines)), "Traceback (most recent call last):"]
    text[-1] = found(at=30, line=text[-1])
    append(log, "".join(f"worker<7> at {line}\n" for line in text))
    written = datetime(2026, 11, 20, 18, 0, 30, tzinfo=timezone.utc).timestamp()
    os.utime(log, (written, written))
    assert clock_shift(FileTailer(log)) == pytest.approx(8 * 3600, abs=1)


@pytest.mark.parametrize(
    ("last", "rank", "place"), [(102, 5, "rank 5, step 102"), (103, None, "At: step 103")]
)
def test_stall_names_the_rank_behind_the_others(
    run: Any, log: Path, last: int, rank: int | None, place: str
) -> None:
    for number in range(8):
        file = log.with_name(f"rank{number}.log")
        append(file, stamped(run.now - 412, 1, last if number == 5 else 103, 4.0))
        os.utime(file, (run.now, run.now))
    begin(run, log)
    run.wait(40)
    (incident,) = run.sent
    assert (incident.kind, incident.rank) == ("stall", rank)
    assert incident.primary is not None and incident.primary.confidence == 0.6
    sent = render(incident, "en", None)
    assert place in sent.text and "after step 103" in sent.title
    assert ("no error was reported: rank 5" in sent.text) is (rank is not None)


def test_new_lines_can_open_incidents(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 80, 1, 20, 4.0))
    os.utime(log, (run.now, run.now))
    _, follower, _ = begin(run, log)
    append(log, f"[rank0]: {OOM}\n")
    follower.step({log})
    run.wait(2)
    assert [(incident.kind, incident.rule) for incident in run.sent] == [("finding", "cuda-oom")]


def test_new_files_are_followed_with_their_rank(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 80, 1, 20, 4.0))
    _, follower, _ = begin(run, log)
    append(log.with_name("rank5.log"), "step 21/500 loss 0.75\n")
    run.now += 2.0
    follower.step(set())
    assert run.metric("stallwatch_loss{rank=5}") == 0.75
    assert (run.folder.path / "ranks" / "rank5.log").exists()


def test_rotation_loses_no_line(run: Any, log: Path) -> None:
    append(log, "step 1/500 loss 1.0\n")
    _, follower, _ = begin(run, log)
    append(log, "step 2/500 lo")
    follower.step({log})
    append(log, "ss 0.5\n")
    log.rename(log.with_suffix(".old"))
    append(log, "step 3/500 loss 0.25\n")
    follower.step({log})
    assert run.metric("stallwatch_step") == 3
    assert run.metric("stallwatch_loss{rank=0}") == 0.25
    assert run.metric("stallwatch_log_lines_total") == 3


def test_restart_resumes_at_the_last_position(watch: Callable[..., Any], log: Path) -> None:
    first = watch()
    append(log, "".join(f"step {step}/500 loss 0.5\n" for step in range(1, 11)))
    files, follower, _ = begin(first, log)
    assert first.metric("stallwatch_log_lines_total") == 10
    follower.close()
    append(log, "step 11/500 loss 0.5\nstep 12/500 loss 0.5\n")

    second = watch()
    files = TailSet([str(log)], read_record(first.folder.path / POSITIONS, dict[str, Position]))
    files.discover()
    diagnosis, *_ = read_history(second.agent, files)
    assert second.metric("stallwatch_log_lines_total") == 2  # counted once over both agents
    assert diagnosis.stats.lines == 12  # the diagnosis covers all lines
    assert diagnosis.progress.first_step == 1 and diagnosis.progress.last_step == 12


class Waiting:
    """A file whose portions take `seconds` each to read."""

    def __init__(self, run: Any, log: Path, seconds: float) -> None:
        self.tailer = FileTailer(log)
        self.run, self.seconds = run, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tailer, name)

    def poll(self) -> Iterator[FileChunk]:
        for portion in self.tailer.poll():
            self.run.now += self.seconds
            yield portion


def test_run_is_not_stalled_while_its_files_are_read(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 160, 1, 40, 4.0))
    os.utime(log, (run.now, run.now))
    files, follower, _ = begin(run, log)
    run.wait(28)
    follower.step(set())
    append(log, ("it is only a warning\n" * 250_000) + "step 41/500 loss 0.02\n")  # 5 MB: two polls
    slow: Any = Waiting(run, log, 2.0)
    slow.tailer, files.tailers[log] = files.tailers[log], slow
    ticks: list[float] = []
    tick = run.agent.tick
    run.agent.tick = lambda now, **more: (ticks.append(now), tick(now, **more))
    fed = run.now
    follower.step({log})
    assert slow.more
    assert len(ticks) >= 15 and ticks == sorted(ticks) and ticks[-1] == run.now > fed + 30
    assert run.sent == []
    follower.step({log})
    assert not slow.more and run.metric("stallwatch_step") == 41
    assert run.sent == []


def test_run_without_steps_is_stalled_after_reading(run: Any, log: Path) -> None:
    append(log, stamped(run.now - 160, 1, 40, 4.0))
    os.utime(log, (run.now, run.now))
    files, follower, _ = begin(run, log)
    slow: Any = Waiting(run, log, 4.0)
    slow.tailer, files.tailers[log] = files.tailers[log], slow
    append(log, "it is only a warning\n" * 120_000)
    follower.step({log})
    assert not slow.more
    assert [incident.kind for incident in run.sent] == ["stall"]


# --- the command


def tail(home: Path, catalogue: Catalogue, globs: list[str], **more: Any) -> tuple[int, list[Any], list[str]]:
    ends: list[tuple[Diagnosis, Ending, RunFolder]] = []
    notices: list[str] = []
    code = tail_files(
        globs,
        ExporterSettings(home=home, port=0, join=more.pop("join", JoinSettings())),
        more.pop("sinks", []),
        catalogue,
        notice=notices.append,
        on_end=lambda *found: ends.append(found),
        **more,
    )
    return code, ends, notices


def test_once_reads_existing_lines_and_ends(tmp_path: Path, log: Path, catalogue: Catalogue) -> None:
    append(log, stamped(time.time() - 80, 1, 20, 4.0))
    code, ends, notices = tail(tmp_path / "home", catalogue, [str(log)], once=True, name="sft")
    ((diagnosis, ending, folder),) = ends
    assert code == 0 and ending.kind == "unknown" and folder.run == "sft"
    assert diagnosis.progress.last_step == 20
    assert len(notices) == 1 and notices[0].startswith(
        "sft: read 1 file as history (20 lines); at step 20 of 500"
    )
    (info,) = list_runs(tmp_path / "home")
    assert info.command[:2] == ["stallwatch", "tail"] and info.ended_at is not None


def test_once_gives_the_diagnosis_of_a_post_mortem(tmp_path: Path, log: Path, catalogue: Catalogue) -> None:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-0081.tar'"
    raised = f'Traceback (most recent call last):\n  File "/x/train.py", line 77, in main\n{error}\n'
    for number in range(8):
        steps = stamped(1_790_000_000, 1, 80 if number == 5 else 100, 4.0)
        append(log.with_name(f"rank{number}.log"), steps + raised * (number == 5))
    incidents: list[Incident] = []
    code, ends, notices = tail(
        tmp_path / "home", catalogue, [str(log.parent)], once=True, sinks=[incidents.append]
    )
    ((found, _, folder),) = ends
    dead, _ = diagnose_paths(sorted(log.parent.iterdir()), Options(catalogue))
    assert code == 1 and found.verdict == "failed" and incidents == []
    kept = read_record(folder.path / "diagnosis.json", Diagnosis)
    found, dead, kept = (replace(each, stats=Stats()) for each in (found, dead, kept))
    assert found == dead == kept
    assert found.primary is not None and found.primary.time == "2026-09-21T14:18:40.000"
    assert found.progress.last_loss == 0.01 and "timestamps are shifted" not in notices[0]


def test_tail_belongs_to_the_named_run(
    tmp_path: Path, log: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)  # variables of the shell that calls the command
    append(log, stamped(time.time() - 80, 1, 20, 4.0))
    for options in ({"name": "x"}, {}):
        _, ends, _ = tail(
            tmp_path / "home", catalogue, [str(log)], once=True, join=JoinSettings(run="sft"), **options
        )
        folder = ends[0][2]
        assert (folder.run, folder.path.name, bool(folder.info.key)) == ("sft", "sft", True)
    _, ends, _ = tail(tmp_path / "home", catalogue, [str(log)], once=True, name="x")
    assert ends[0][2].info.key == ""


def test_once_without_matching_files_is_an_error(tmp_path: Path, catalogue: Catalogue) -> None:
    code, ends, notices = tail(tmp_path / "home", catalogue, [str(tmp_path / "*.log")], once=True)
    assert code == 2 and ends == [] and "no file matches" in notices[0]


def test_tail_follows_until_it_is_stopped(tmp_path: Path, log: Path, catalogue: Catalogue) -> None:
    """A thread appends a failure to the log; the sink that gets it stops the agent."""
    append(log, stamped(time.time() - 80, 1, 20, 4.0))
    take: list[Incident] = []
    done = threading.Event()

    def hear(incident: Incident) -> None:
        take.append(incident)
        done.set()

    writer = threading.Timer(0.3, append, (log, f"{OOM}\n"))
    writer.start()
    _, ends, _ = tail(tmp_path / "home", catalogue, [str(log)], sinks=[hear], stopped=done.is_set)
    writer.join()
    assert [(incident.kind, incident.rule) for incident in take] == [("finding", "cuda-oom")]
    assert ends[0][2].run.startswith("rank0-")


def test_tail_ends_when_the_files_are_idle(tmp_path: Path, log: Path, catalogue: Catalogue) -> None:
    append(log, "step 1/5 loss 1.0\n")
    code, ends, _ = tail(tmp_path / "home", catalogue, [str(log.parent)], until_idle=0.5)
    assert code == 0 and has(ends[0][1].detail, "run.stopped-watching")


# The other namespace is that of an earlier container or boot.
@pytest.mark.parametrize(("namespace", "run"), [(None, "sft-2"), ("b00t/pid:[1]", "sft")])
def test_name_of_a_live_run_is_not_reused(
    tmp_path: Path, log: Path, catalogue: Catalogue, namespace: str | None, run: str
) -> None:
    append(log, "step 1/5 loss 1.0\n")
    live = RunFolder.create("sft", ["x"], home=tmp_path / "home")
    live.write_info(updated_at=time.time() - 20, namespace=namespace or live.info.namespace)
    _, ends, notices = tail(tmp_path / "home", catalogue, [str(log)], once=True, name="sft")
    assert ends[0][2].run == run
    assert any("is taken" in text for text in notices) is (run != "sft")


@pytest.mark.parametrize("how", [{"once": True}, {"until_idle": 0.2}], ids=["once", "until-idle"])
def test_old_log_read_once_opens_no_stall(
    tmp_path: Path, log: Path, catalogue: Catalogue, how: dict[str, Any]
) -> None:
    append(log, stamped(time.time() - 680, 1, 20, 4.0))
    os.utime(log, (time.time() - 600, time.time() - 600))
    take: list[Incident] = []
    tail(tmp_path / "home", catalogue, [str(log)], sinks=[take.append], **how)
    assert take == []
