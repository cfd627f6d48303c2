"""`stallwatch run` from end to end, with small real commands."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.running.capture import ByteQueue, Chunk
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.runs.replay import replay
from stallwatch_exporter.runs.runfolder import RunFolder, list_runs
from stallwatch_exporter.settings import ExporterSettings, JoinSettings
from stallwatch_exporter.watching import opening
from stallwatch_exporter.watching.log_reader import LogReader, joined
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis


class Outcome:
    """Result of a run."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.sent: list[Incident] = []
        self.notices: list[str] = []
        self.ends: list[tuple[Diagnosis, Ending, RunFolder]] = []

    @property
    def diagnosis(self) -> Diagnosis:
        return self.ends[0][0]

    @property
    def ending(self) -> Ending:
        return self.ends[0][1]

    @property
    def folder(self) -> RunFolder:
        return self.ends[0][2]


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, catalogue: Catalogue) -> Run:
    """Return a function that runs Python code under watch in this process."""

    def start(code: str, *, on_incident: Callable[[Incident], None] | None = None, **more: Any) -> Outcome:
        outcome = Outcome()
        command = more.pop("command", [sys.executable, "-c", code])
        name = more.pop("name", None)
        settings = ExporterSettings(**{"home": tmp_path / "home", "port": 0, **more})
        outcome.code = run_command(
            command,
            settings,
            [outcome.sent.append, on_incident or (lambda _: None)],
            catalogue,
            name=name,
            notice=outcome.notices.append,
            on_end=lambda *found: outcome.ends.append(found),
        )
        return outcome

    return start


STEPS = "for step in range(1, 9): print(f'step {step}/100 loss {1 / step:.3f}')\n"


def test_output_and_exit_code_of_the_command_are_unchanged(
    run: Run, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    outcome = run("import os; os.write(1, b'a\\r\\xff\\n'); os.write(2, b'b'); raise SystemExit(5)")
    assert capfdbinary.readouterr() == (b"a\r\xff\n", b"b")
    assert outcome.code == 5
    assert (outcome.ending.kind, outcome.ending.exit_code) == ("failed", 5)
    assert outcome.notices == []


def test_flood_of_output_is_forwarded_and_copied_completely(
    run: Run, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    outcome = run("import sys; sys.stdout.write(''.join(f'line number {i}\\n' for i in range(60_000)))")
    expected = "".join(f"line number {i}\n" for i in range(60_000)).encode()
    assert capfdbinary.readouterr().out == expected
    assert outcome.diagnosis.stats.lines == 60_000
    out = io.BytesIO()
    replay(outcome.folder.path, 1e9, out=out, err=io.BytesIO(), sleep=lambda _: None)
    assert out.getvalue() == expected


def test_stall_and_kill_are_reported(run: Run, tmp_path: Path) -> None:
    """The recipient of the stall's notification kills the command; the page shows the stall until then."""
    pages: list[str] = []
    pid_file = tmp_path / "pid"
    code = f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
    code += "import time\nfor step in range(1, 9): print(f'step {step}/100 loss 0.5'); time.sleep(0.15)\n"
    code += "signal.pause()"

    def take(incident: Incident) -> None:
        # A pause of the machine between two steps is also a stall, which ends with the next step.
        if incident.kind == "stall" and incident.status == "open" and incident.step == 8:
            (info,) = list_runs(tmp_path / "home")
            assert info.endpoint is not None
            with urllib.request.urlopen(info.endpoint, timeout=120) as answer:
                pages.append(answer.read().decode())
            os.kill(int(pid_file.read_text()), signal.SIGKILL)

    outcome = run(code, on_incident=take, stall_floor_seconds=0.3)
    assert outcome.code == 137
    stall, ended = outcome.sent[-2:]
    assert (stall.kind, stall.step, stall.total_steps) == ("stall", 8, 100)
    assert (ended.id, ended.status, ended.outcome) == (stall.id, "resolved", "crashed")
    assert ended.ending is not None
    assert ended.ending.signal == "SIGKILL" and ended.ending.kind in ("killed", "oom-killed")
    assert 'stallwatch_step{run="' in pages[0] and "} 8.0" in pages[0]
    (info,) = list_runs(tmp_path / "home")
    assert info.state == "failed" and info.ended_at is not None


def test_failure_is_diagnosed(run: Run) -> None:
    outcome = run(STEPS + "raise ValueError('deepspeed.initialize requires a model')")
    assert outcome.code == 1
    assert outcome.diagnosis.verdict in ("failed", "unknown-failure")
    assert outcome.diagnosis.progress.last_step == 8
    assert [incident.kind for incident in outcome.sent] == ["ended"]


def test_success_is_not_an_incident(run: Run) -> None:
    outcome = run(STEPS)
    assert outcome.code == 0 and outcome.sent == []
    assert outcome.diagnosis.verdict == "finished"
    assert outcome.ending.kind == "finished"


def test_missing_command_creates_no_run(run: Run, tmp_path: Path) -> None:
    outcome = run("", command=["no-such-command"])
    assert outcome.code == 127 and outcome.ends == []
    assert outcome.notices == ["no-such-command: command not found"]
    assert list_runs(tmp_path / "home") == []


def test_unwritable_home_does_not_stop_the_run(
    run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    outcome = run(STEPS, home=tmp_path / "file")
    assert outcome.code == 0 and capfdbinary.readouterr().out.count(b"\n") == 8
    assert outcome.notices[0].startswith("the record of this run cannot be written anywhere")
    assert outcome.diagnosis.progress.last_step == 8


def test_name_in_use_is_reported(run: Run) -> None:
    assert run(STEPS, name="sft 7b").folder.run == "sft-7b"
    outcome = run(STEPS, name="sft 7b")
    assert outcome.folder.run == "sft-7b-2"
    assert outcome.notices == ["the name sft 7b is taken; this run is called sft-7b-2"]


@pytest.mark.parametrize(
    ("name", "called", "said"),
    [
        ("", "", "the name is empty"),
        ("a/../b c \U0001f4a5", "a-..-b-c", "contains characters that are not allowed in the name of a run"),
        ("x" * 400, "x" * 100, "is longer than 100 characters"),
        ("sft-7b", "sft-7b", ""),
    ],
)
def test_invalid_name_is_reported(run: Run, name: str, called: str, said: str) -> None:
    outcome = run("pass", name=name)
    assert outcome.folder.run == called or not called
    assert len(outcome.notices) == bool(said)
    assert all(f"{said}; this run is called {outcome.folder.run}" in notice for notice in outcome.notices)


STEP_OF_SLURM = {
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_ID": "8123",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}


def test_tasks_of_a_slurm_step_are_one_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STEP_OF_SLURM.items():
        monkeypatch.setenv(name, value)
    outcomes = [run("pass", name=name) for name in ("sft", "sft", "sft 7b")]
    assert [outcome.folder.run for outcome in outcomes] == ["sft-8123.0", "sft-8123.0", "sft-7b-8123.0"]
    assert outcomes[1].folder.path.name.startswith("sft-8123.0+")
    infos = [outcome.folder.info for outcome in outcomes]
    assert infos[0].key == infos[1].key != infos[2].key and infos[0].job == "8123.0"
    said = (
        "the name sft 7b contains characters that are not allowed in the name of a run; "
        "this run is called sft-7b-8123.0"
    )
    assert [outcome.notices for outcome in outcomes] == [[], [], [said]]
    alone = run("pass", name="sft", join=JoinSettings(mode="off")).folder
    assert (alone.run, alone.info.key) == ("sft", "")


def test_pods_with_equal_names_in_two_namespaces_are_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "NAMESPACE_FILE", tmp_path / "namespace")
    pod = {"MASTER_ADDR": "a-master-0", "RANK": "0", "WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    keys = []
    for space in (None, "team", "other\n", b"\xff"):
        if space is not None:
            opening.NAMESPACE_FILE.write_bytes(space if isinstance(space, bytes) else space.encode())
        found = opening.identity_here(["train.py"], ExporterSettings(home=tmp_path), None)
        assert found is not None
        keys.append(found.key)
    assert keys[0] == keys[3] and len(set(keys)) == 3


def test_failing_agent_does_not_affect_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("stallwatch_exporter.running.command.open_agent", broken)
    outcome = run(STEPS + "raise SystemExit(4)")
    assert outcome.code == 4 and outcome.ends == []
    assert capfdbinary.readouterr().out.count(b"\n") == 8
    assert outcome.notices == ["watching failed (MemoryError: no room); the command continues"]


def test_secrets_in_the_command_are_masked(run: Run) -> None:
    token = "hf_" + "A1b2" * 9
    outcome = run("", command=[sys.executable, "-c", "pass", "--hf_token", token])
    assert token not in (outcome.folder.path / "agent.json").read_text()
    assert outcome.folder.info.command[:3] == [sys.executable, "-c", "pass"]


# --- as a separate process: signals and terminals

DRIVER = """
import os, sys
from pathlib import Path
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.pages.catalogue import load_catalogue
settings = ExporterSettings(home=Path(sys.argv[1]), port=0)
catalogue = load_catalogue(cache=Path(os.environ["STALLWATCH_CACHE"]))
def end(diagnosis, ending, folder):
    print(ending.kind, ending.signal, ending.exit_code, file=sys.stderr, flush=True)
sys.exit(run_command(sys.argv[2:], settings, [], catalogue, on_end=end))
"""
SLOW_EXIT = """
import os, signal, sys, time
def caught(number, frame):
    os.write(1, b"saving " + signal.Signals(number).name.encode() + b"\\n")
    sys.exit(9)
signal.signal(signal.SIGTERM, caught)
signal.signal(signal.SIGINT, caught)
os.write(1, b"ready\\n")
while True:  # a signal that comes right before signal.pause() would be waited for in vain
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGTERM, "killed SIGTERM 9"), (signal.SIGINT, "interrupted None 9")],
    ids=["term", "int"],
)
def test_command_can_save_after_a_signal(number: signal.Signals, ending: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), sys.executable, "-c", SLOW_EXIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # without a terminal, Ctrl-C does not reach the command by itself
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert out == b"saving " + number.name.encode() + b"\n"
    assert process.returncode == 9
    assert err.decode().splitlines()[-1] == ending


def test_sigterm_after_the_end_does_not_prevent_the_report(tmp_path: Path) -> None:
    """A scheduler ends the whole job: the command ended first, and the agent is writing the report."""
    waiting = "    print('reporting', file=sys.stderr, flush=True)\n    sys.stdin.readline()\n"
    driver = DRIVER.replace("    print(ending", waiting + "    print(ending")
    with subprocess.Popen(
        [sys.executable, "-c", driver, str(tmp_path), "true"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == b"reporting\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(b"go on\n", timeout=120)
    assert process.returncode == 0
    assert err == b"finished None 0\n"


def test_ctrl_c_in_a_terminal_reaches_the_command_once_only(tmp_path: Path) -> None:
    """The terminal sends the signal to both; the agent stays, reports, and returns the exit code."""
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(
            sys.executable, [sys.executable, "-c", DRIVER, str(tmp_path), sys.executable, "-c", SLOW_EXIT]
        )
    seen = b""
    pressed = False
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
        if b"ready" in seen and not pressed:
            pressed = True
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9
    assert seen.count(b"saving SIGINT\r\n") == 1
    assert b"interrupted None 9" in seen


# --- the reader thread


def test_chunks_of_one_moment_are_joined() -> None:
    chunks = [
        Chunk("stdout", b"a", 1.0, False),
        Chunk("stdout", b"\n", 1.001, False),
        Chunk("stderr", b"b", 1.002, False),
        Chunk("stdout", b"c", 1.003, False),
        Chunk("stdout", b"d", 2.0, False),
        Chunk("stdout", b"e", 2.0, True),
    ]
    found = [(chunk.source, chunk.data, chunk.fresh) for chunk in joined(chunks)]
    assert found == [
        ("stdout", b"a\n", False),
        ("stderr", b"b", False),
        ("stdout", b"c", False),
        ("stdout", b"d", False),
        ("stdout", b"e", True),
    ]


def test_report_that_takes_too_long_is_omitted() -> None:
    messages: list[str] = []
    release = threading.Event()

    def never() -> Any:
        release.wait()
        raise RuntimeError

    reader = LogReader(never, ByteQueue(), os.getpid(), messages.append)
    assert reader.finish(lambda _: pytest.fail("no agent"), patience=0.05, report=0.0) is None
    assert "is skipped" in messages[0]
    release.set()


def test_command_continues_without_a_monitoring_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_thread(*_: object) -> LogReader:
        raise RuntimeError("can't start new thread")

    messages: list[str] = []
    monkeypatch.setattr("stallwatch_exporter.running.command.LogReader", no_thread)
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    settings = ExporterSettings(home=tmp_path)
    assert run_command(command, settings, [], Catalogue.of([]), metrics=False, notice=messages.append) == 3
    assert any("can't start new thread" in line for line in messages)


def test_launcher_for_other_hosts_gets_advice(run: Run, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    outcome = run("", command=[str(srun), "-N2", "python", "train.py"])
    better = f"{srun} -N2 stallwatch run -- python train.py"
    assert outcome.code == 0 and [line for line in outcome.notices if line.endswith(better)]
