"""``[stall] on_stall`` with real processes: custom commands, and runs that are ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from processes import runs

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.stacks.reaction import OUTPUT_BYTES, Response, abort, run_line, variables
from stallwatch_rules.endings import Ending, ending_name
from stallwatch_rules.locale import render
from stallwatch_rules.messages import message
from stallwatch_rules.stacks.records import StackGroup, StallStacks

STALL = Incident(
    id="sft/stall/silent-hang-no-error/1",
    run="sft",
    kind="stall",
    rule="silent-hang-no-error",
    severity="critical",
    status="open",
    episode=1,
    opened_at=0.0,
    updated_at=0.0,
    step=12,
    stacks=StallStacks(1.0, 0.1, [StackGroup([1], "code")], [1], "elsewhere", file="stacks-1.txt"),
)


def test_command_receives_the_incident_and_variables(tmp_path: Path) -> None:
    notices: list[str] = []
    line = f"cat > {tmp_path}/in; echo $STALLWATCH_RANKS $STALLWATCH_STEP $STALLWATCH_STACKS > {tmp_path}/out"
    folder = RunFolder.create("sft", ["train"], home=tmp_path)
    thread = Response(folder, f"command {line}", None, notices.append).react(STALL)
    assert thread is not None
    thread.join(120)
    assert json.loads((tmp_path / "in").read_text())["stacks"]["odd"] == [1]
    assert (tmp_path / "out").read_text() == f"1 12 {folder.path}/stacks-1.txt\n"
    (notice,) = notices
    assert "exited with code 0" in notice and notice.endswith("(it printed nothing)")


def test_output_of_a_command_is_stored_and_reported(tmp_path: Path) -> None:
    notices: list[str] = []
    run_line("echo requeued; echo as 4712 >&2", STALL, {}, notices.append, folder=str(tmp_path))
    (kept,) = tmp_path.glob("on-stall-*.txt")
    assert kept.read_text() == "requeued\nas 4712\n"
    (notice,) = notices
    assert "exited with code 0" in notice and str(kept) in notice


def test_command_receives_the_incident_as_text(tmp_path: Path) -> None:
    stall = msgspec.structs.replace(STALL, note=message("diagnosis.nothing-says-why"))
    run_line("cat", stall, {}, lambda _: None, folder=str(tmp_path), language="zh")
    (kept,) = tmp_path.glob("on-stall-*.txt")
    assert msgspec.json.decode(kept.read_bytes())["note"] == "日志里找不到卡住的原因。"


def test_end_of_long_output_is_kept(tmp_path: Path) -> None:
    line = f"{sys.executable} -c \"print('x' * 200_000); print('the end')\""
    run_line(line, STALL, {}, lambda _: None, folder=str(tmp_path))
    (kept,) = tmp_path.glob("on-stall-*.txt")
    text = kept.read_text()
    assert text.startswith("[the first ") and text.endswith("x\nthe end\n")
    assert OUTPUT_BYTES < len(text) < OUTPUT_BYTES + 100


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    notices: list[str] = []
    run_line("echo hello", STALL, {}, notices.append, folder=str(tmp_path / "gone"))
    assert "its output cannot be saved: No such file" in notices[0]


def test_command_that_exceeds_its_time_is_ended_with_its_children(tmp_path: Path) -> None:
    notices: list[str] = []
    line = "sleep 600 & echo $!; wait"
    run_line(line, STALL, {}, notices.append, folder=str(tmp_path), patience=4.0)
    (kept,) = tmp_path.glob("on-stall-*.txt")
    child = int(kept.read_text())
    until = time.monotonic() + 120
    while runs(child):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "was killed after 4 s" in notices[0]


def test_command_has_its_own_session(tmp_path: Path) -> None:
    code = "import os; print(os.getsid(0) == os.getpgrp() != int(os.environ['OURS']))"
    run_line(f'{sys.executable} -c "{code}"', STALL, {"OURS": str(os.getsid(0))}, print, folder=str(tmp_path))
    (kept,) = tmp_path.glob("on-stall-*.txt")
    assert kept.read_text() == "True\n"


def test_failed_or_slow_command_is_reported() -> None:
    notices: list[str] = []
    run_line("echo no such job >&2; exit 3", STALL, {}, notices.append)
    run_line("exec sleep 60", STALL, {}, notices.append, patience=0.2)
    run_line("kill -TERM $$", STALL, {}, notices.append)
    assert "exited with code 3" in notices[0] and notices[0].endswith(": no such job")
    assert "was killed after" in notices[1]
    assert "was ended by SIGTERM after" in notices[2]


def test_unknown_variables_are_empty() -> None:
    found = variables(msgspec.structs.replace(STALL, stacks=None), None, "")
    assert (found["STALLWATCH_RANKS"], found["STALLWATCH_COMMAND_PID"], found["STALLWATCH_STACKS"]) == (
        "",
        "",
        "",
    )


STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
while True:  # whichever of the two is killed first
    signal.pause()
"""


def test_command_that_ignores_sigterm_is_killed_with_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        grandchild = int(command.stdout.readline())
        abort(command.pid, grace=0.3)
        assert command.wait(120) == -9
    until = time.monotonic() + 120
    while runs(grandchild):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("asked", ["children", "status"])
def test_unreadable_process_does_not_prevent_the_abort(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    never = threading.Event()
    monkeypatch.setattr(psutil.Process, asked, lambda *_, **__: [never.wait()])
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); input()"
    for code, ended_by in ((ignores, signal.SIGKILL), ("print(flush=True); input()", signal.SIGTERM)):
        with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=subprocess.PIPE) as command:
            assert command.stdout is not None
            command.stdout.readline()
            # Nobody reaps the command here, so all of the grace period passes. It can be short: a signal sets
            # the exit status at the moment when it is sent.
            abort(command.pid, grace=1.0, patience=0.5)
            assert command.wait(120) == -ended_by


def test_released_process_id_gets_no_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ended and was reaped, so its process id may belong to another process."""
    never, sent, kill = threading.Event(), [], os.kill
    monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: [never.wait()])
    monkeypatch.setattr(os, "kill", lambda pid, number: (sent.append((pid, number)), kill(pid, number))[1])
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1
    ) as command:
        assert command.stdout is not None
        command.stdout.readline()
        waiting = threading.Thread(target=command.wait)
        waiting.start()
        abort(command.pid, grace=30.0, patience=0.5)
        waiting.join(120)
    assert [number for pid, number in sent if pid == command.pid and number] == [signal.SIGTERM]


def test_abort_does_not_reap_the_command() -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as command:
        abort(command.pid, grace=30)
        assert command.wait(120) == -signal.SIGTERM


def test_only_run_can_end_a_command(tmp_path: Path) -> None:
    notices: list[str] = []
    folder = RunFolder.create("sft", ["train"], home=tmp_path)
    response = Response(folder, "abort", None, notices.append)
    assert response.react(STALL) is None and not response.aborted
    assert "use stallwatch run" in notices[0]
    response = Response(folder, "report", None, notices.append)
    response.watch(4711)
    assert response.react(STALL) is None


def test_ending_says_that_the_agent_ended_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create("sft", ["torchrun"], home=tmp_path)
    response = Response(folder, "abort", None, lambda _: None)
    exited = Ending("failed", 1, detail=message("run.exited", code=1))
    assert render(ending_name(response.judged(exited))) == "failed"
    response.aborted = True
    assert render(ending_name(response.judged(exited))) == "ended by Stallwatch ([stall] on_stall = abort)"
