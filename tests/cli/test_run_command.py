"""``stallwatch run`` and ``stallwatch tail`` as processes, with a real chat endpoint."""

from __future__ import annotations

import errno
import http.server
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwatch.cli.watching import Destinations, kept_line
from stallwatch.config.loading import load
from stallwatch_alerts.sink import ChatSink
from stallwatch_alerts.store import IncidentStore
from stallwatch_exporter.runs.runfolder import RunFolder, list_runs
from stallwatch_rules.endings import Ending
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

Process = Callable[..., subprocess.CompletedProcess[str]]

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
STEPS = """
import time
for n in range(1, {steps} + 1):
    print({{'loss': 1 / n, 'epoch': n / 100}}, flush=True)
    time.sleep({pause})
"""


class Chat:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.came = threading.Condition()
        self.on_message: Callable[[dict[str, Any]], None] = lambda body: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.came:
                    outer.bodies.append(body)
                    outer.came.notify_all()
                outer.on_message(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"json://127.0.0.1:{self.server.server_port}/s3cr3t-hook?cto=60&rto=60"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def wait_for(self, **fields: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((body for body in self.bodies if fields.items() <= body.items()), None)

        with self.came:
            assert self.came.wait_for(found, timeout=120), self.bodies
            return found() or {}


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    chat = Chat()
    monkeypatch.setenv("STALLWATCH_ALERTS_URLS", chat.url)
    yield chat
    chat.server.shutdown()
    chat.server.server_close()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


# Uses up all file descriptors before the run's end; preloading starts a moment after the run.
STARVED = """
import resource
from stallwatch.cli import main
from stallwatch.cli.watching import preload
from stallwatch_exporter.watching.log_reader import LogReader

finish = LogReader.finish

def starved(*args, **options):
    result = finish(*args, **options)
    preload("en")
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return result

LogReader.finish = starved
main()
"""


@pytest.mark.parametrize("code", [0, 3])
def test_output_and_exit_code_of_the_command_are_unchanged(process: Process, code: int) -> None:
    script = f"print('a\\rb  \\n\\n é'); raise SystemExit({code})"
    result = process("run", "--no-metrics", "--", *python(script), text=False)
    assert (result.returncode, result.stdout) == (code, "a\rb  \n\n é\n".encode())  # type: ignore[comparison-overlap]
    lines = result.stderr.decode().splitlines()  # type: ignore[attr-defined]
    assert all(line.startswith("stallwatch:") for line in lines)
    assert any("How the run ended:" in line for line in lines)


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_notice_after_a_progress_bar_starts_on_a_new_line(process: Process, stream: str) -> None:
    script = f"import sys; print('begins', file=sys.stderr); sys.{stream}.write('\\r 43%|███ ')"
    result = process("run", "--no-metrics", "--", *python(script))
    bar = (
        "begins\n\n 43%|███ \n" if stream == "stderr" else "begins\n"
    )  # a carriage return is read as a line's end
    assert result.stderr.startswith(f"{bar}stallwatch: How the run ended: "), result.stderr
    assert "\n\n" not in result.stderr.removeprefix(bar)


def test_run_option_names_the_run_over_several_hosts(process: Process) -> None:
    address = ("--join", "n1:19402")
    result = process("run", "--run", "sft 7b", *address, "--port", "0", "--", *python("pass"))
    assert result.returncode == 0, result.stderr
    (info,) = list_runs(Path(os.environ["STALLWATCH_HOME"]))
    assert (info.run, info.job, bool(info.key)) == ("sft-7b", "sft-7b", True)


def test_finished_run_gets_a_short_report(process: Process) -> None:
    result = process("run", "--port", "0", "--", *python(STEPS.format(steps=3, pause=0)))
    assert result.returncode == 0
    assert "How the run ended: finished after" in result.stderr
    assert "Evidence" not in result.stderr


def test_command_that_continues_without_a_missing_tool_has_not_failed(process: Process) -> None:
    script = "no-such-tool start\necho Reading\nsleep 0.2\nexit 0"
    result = process("run", "--no-metrics", "--", "bash", "-c", script)
    assert result.returncode == 0 and "How the run ended: finished after" in result.stderr


def test_options_after_the_command_belong_to_the_command(process: Process) -> None:
    result = process("run", "--no-metrics", "echo", "--name", "x", "-h")
    assert (result.returncode, result.stdout) == (0, "--name x -h\n")


def test_missing_command_has_exit_code_127(process: Process) -> None:
    result = process("run", "--", "no-such-command-anywhere")
    assert result.returncode == 127
    assert "no-such-command-anywhere" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[exporter]\nport = 'x'\n", ["stallwatch.toml:2: exporter.port must be"]),
        (
            "[alerts]\nurls = ['json://127.0.0.1:1'\n[stall]\n",
            [
                "stallwatch.toml:3: is not valid TOML",
                "stallwatch.toml:3: no setting in this file",
                "NOBODY WILL BE",
            ],
        ),
    ],
)
def test_invalid_configuration_does_not_prevent_a_run(
    process: Process, tmp_path: Path, text: str, expected: list[str]
) -> None:
    (tmp_path / "stallwatch.toml").write_text(text)
    result = process("run", "--no-metrics", "--", *python("print('trained')"))
    assert (result.returncode, result.stdout) == (0, "trained\n")
    assert all(words in result.stderr for words in expected), result.stderr


def test_exit_code_is_kept_if_monitoring_fails(
    stallwatch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("stallwatch_rules.report.terminal.print_report", broken)
    monkeypatch.setattr("stallwatch_rules.pages.catalogue.load_catalogue", broken)
    result = stallwatch("run", "--no-metrics", "--", *python("raise SystemExit(5)"))
    assert result.exit_code == 5
    assert "the run continues without them" in result.stderr
    assert "the report failed (RuntimeError: boom)" in result.stderr


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("stallwatch.cli.watching.print_end", "the report failed"),
        ("stallwatch.cli.watching.TerminalSink.close", "printing the last lines on the terminal failed"),
        ("stallwatch_alerts.store_sink.StoreSink.close", "storing the last incidents failed"),
        ("stallwatch_exporter.running.capture.Capture.drain", "forwarding the last output failed"),
        ("stallwatch_exporter.watching.log_reader.LogReader.finish", "concluding failed"),
        ("stallwatch_exporter.watching.log_reader.LogReader.close", "closing /metrics failed"),
    ],
)
def test_errors_at_the_end_do_not_replace_the_exit_code(
    stallwatch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, broken: str, expected: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "module.py")

    monkeypatch.setattr(broken, full)
    result = stallwatch("run", "--no-metrics", "--", *python("raise SystemExit(5)"))
    assert result.exit_code == 5, result.output
    assert f"{expected} (OSError: [Errno 24]" in result.stderr


@pytest.mark.parametrize(
    ("last_words", "verdict"),
    [
        ("sys.exit(3)", "unknown-failure"),
        ("os.kill(os.getpid(), 9)", "failed"),
        ("pass", "finished"),
    ],
)
def test_log_of_a_job_shows_how_the_command_ended(process: Process, last_words: str, verdict: str) -> None:
    code = STEPS.format(steps=20, pause=0.01) + f"\nimport os, sys\n{last_words}\n"
    ran = process("run", "--no-metrics", "--language", "zh", "--", *python(code))
    log = ran.stdout + ran.stderr  # as in the log of a scheduler
    diagnosed = process("diagnose", "-", "--json=2", input=log)
    assert json.loads(diagnosed.stdout)["verdict"] == verdict, log


def test_run_is_reported_without_free_file_descriptors(tmp_path: Path) -> None:
    script = tmp_path / "starved.py"
    script.write_text(STARVED)
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    result = subprocess.run(
        [sys.executable, str(script), "run", "--port", "0", "--", *python(f"raise SystemExit({oom!r})")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert result.returncode == 1, result.stderr
    assert "The GPU ran out of memory" in result.stderr and "internal error" not in result.stderr
    assert "the report failed" not in result.stderr


@pytest.mark.parametrize(
    "broken",
    [
        "stallwatch.cli.context.load",
        "stallwatch.config.handover.exporter_settings",
        "stallwatch.cli.watching.Destinations",
    ],
)
def test_command_runs_if_monitoring_cannot_start(
    stallwatch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(broken, fail)
    result = stallwatch("run", "--", *python("print('trained'); raise SystemExit(5)"))
    assert result.exit_code == 5
    assert "cannot be watched (RuntimeError: can't start new thread)" in result.stderr
    assert capfd.readouterr().out == "trained\n"
    result = stallwatch("run", "--", "no-such-command-anywhere")
    assert result.exit_code == 127 and "command not found" in result.stderr


def test_broken_environment_does_not_prevent_a_run(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    environ = {**os.environ, "STALLWATCH_HOME": "~no-such-user/x", "STALLWATCH_EXPORTER_PORT": "x"}
    command = [sys.executable, "-c", "from stallwatch.cli import main; main()", "run", "--no-metrics", "--"]
    leave = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); os.execv({sys.executable!r}, {{}})"
    inner = [*command, *python("print('trained'); raise SystemExit(5)")]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            python(leave.format(inner)),
            stdout=subprocess.PIPE,
            stderr=full,
            env={**environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
            timeout=60,
        )
    assert (result.returncode, result.stdout) == (5, b"trained\n")


def test_failure_reaches_chat_database_and_terminal(process: Process, chat: Chat) -> None:
    code = f"import sys\nprint({OOM!r}, file=sys.stderr)\nraise SystemExit(1)"
    result = process("run", "--no-metrics", "--name", "oom", "--", *python(code))
    assert result.returncode == 1
    body = chat.wait_for(kind="ended", status="resolved", outcome="crashed")
    assert (body["run"], body["rule"], body["severity"]) == ("oom", "cuda-oom", "critical")
    assert body["title"].startswith("[oom] failed: ")
    assert "exit code 1" in body["text"]
    home = Path(os.environ["STALLWATCH_HOME"])
    (incident,) = [item for item in IncidentStore.at_home(home).list(run="oom") if item.kind == "ended"]
    assert incident.rule == "cuda-oom"
    assert "cuda-oom" in result.stderr and "failed, exit code 1" in result.stderr
    assert "s3cr3t" not in result.stderr
    (info,) = list_runs(home)
    assert (info.run, info.state) == ("oom", "failed")


def test_stall_is_reported_when_it_begins_and_when_it_ends(
    process: Process, chat: Chat, tmp_path: Path
) -> None:
    chat_env = {
        "STALLWATCH_STALL_FLOOR_SECONDS": "1",
        "STALLWATCH_STALL_START_SECONDS": "1",
        "STALLWATCH_ALERTS_LANGUAGE": "zh",
    }
    found = tmp_path / "told"
    chat.on_message = lambda body: found.touch() if body["kind"] == "stall" else None
    waits = f"import pathlib, time\nwhile not pathlib.Path({str(found)!r}).exists(): time.sleep(0.1)\n"
    code = f"{waits}{STEPS.format(steps=3, pause=0.1)}"
    result = process("run", "--no-metrics", "--name", "s", "--", *python(code), env=chat_env)
    assert result.returncode == 0
    opened = chat.wait_for(kind="stall", status="open")
    over = chat.wait_for(kind="stall", status="resolved")
    assert opened["id"] == over["id"]
    assert opened["title"].startswith("[s] 卡住") and over["title"].startswith("[s] 已恢复")
    assert "stallwatch: [s] stalled: no " in result.stderr
    assert "stallwatch: [s] recovered after " in result.stderr


def test_tail_reads_existing_lines_and_ends_with_ctrl_c(tmp_path: Path, chat: Chat) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(f"{{'loss': {1 / n}, 'epoch': {n / 100}}}\n" for n in range(1, 9)))
    code = "from stallwatch.cli import main; main()"
    options = ["--no-metrics", "--name", "t"]
    with subprocess.Popen(
        [sys.executable, "-c", code, "tail", *options, str(log)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as child:
        home = Path(os.environ["STALLWATCH_HOME"])
        deadline = time.monotonic() + 120
        while not any(info.state == "training" for info in list_runs(home)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with log.open("a") as out:
            out.write(OOM + "\n")
        body = chat.wait_for(kind="finding", status="open")
        child.send_signal(signal.SIGINT)
        time.sleep(0.02)
        child.send_signal(signal.SIGINT)  # as timeout(1) does
        _, err = child.communicate(timeout=120)
    assert (body["run"], body["rule"]) == ("t", "cuda-oom")
    assert "Traceback (most" not in err and "Stallwatch stopped watching the run" in err
    assert child.returncode in (0, 1)


def test_chats_without_the_extra_are_reported_without_a_crash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("stallwatch.cli.watching.find_spec", lambda name: None)
    config = load(environ={"STALLWATCH_ALERTS_URLS": "slack://s3cr3t"}, cwd=tmp_path)
    destinations = Destinations(config, Catalogue.of([]))
    assert len(destinations.sinks) == 1  # the terminal is always a destination
    destinations.close()
    err = capsys.readouterr().err
    assert "pip install 'stallwatch[alerts]'" in err and "s3cr3t" not in err


@pytest.mark.parametrize("chats", ["none", "that work", "whose closing fails"])
def test_killed_run_counts_as_reported_only_if_a_chat_was_notified(
    tmp_path: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch, chats: str
) -> None:
    home = tmp_path / "home"
    dead = RunFolder.create("dead", ["python"], home=home)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    dead.write_info(reported=False, pid=gone.pid, updated_at=time.time() - 120)

    def fails(self: ChatSink) -> int:
        raise OSError("database is locked")

    if chats == "whose closing fails":
        monkeypatch.setattr(ChatSink, "kept", fails)
    environ = {"STALLWATCH_HOME": str(home), "STALLWATCH_ALERTS_URLS": "" if chats == "none" else chat.url}
    destinations = Destinations(load(environ=environ, cwd=tmp_path), Catalogue.of([]))
    own = RunFolder.create("own", ["python"], home=home)
    own.write_info(reported=False)
    destinations.ended(Diagnosis("finished"), Ending("finished", 0), own)
    destinations.close()
    reported = {info.run: info.reported for info in list_runs(home)}
    assert reported == {"dead": chats == "that work", "own": chats != "whose closing fails"}


SLEEPER = "import signal, time; print('step 1/9 loss 1', flush=True); time.sleep(60)"


@pytest.mark.parametrize("pause", [0.02, 0.1, 0.3])
def test_second_sigterm_does_not_prevent_the_report(tmp_path: Path, pause: float) -> None:
    code = "from stallwatch.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--no-metrics", "--", *python(SLEEPER)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()  # the command is running
        child.terminate()
        time.sleep(pause)
        child.terminate()
        output = child.stderr.read()
    # 143 as a shell reports it; -15 if the second signal came after the report
    assert child.returncode in (143, -15)
    assert "How the run ended: interrupted by SIGTERM" in output and "INTERRUPTED" in output
    (info,) = list_runs(Path(os.environ["STALLWATCH_HOME"]))
    assert info.ending is not None and info.ending.signal == "SIGTERM" and info.ended_at is not None


def test_ending_is_reported_in_the_configured_language(process: Process) -> None:
    command = ["run", "--no-metrics", "--language", "zh", "--name", "k", "--"]
    result = process(*command, *python("import os; os.kill(os.getpid(), 9)"))
    assert result.stderr.count("命令被 SIGKILL 终止。") == 1
    folder = Path(os.environ["STALLWATCH_HOME"]) / "runs" / "k"
    report = process("diagnose", "--language", "zh", str(folder)).stdout
    assert "命令被 SIGKILL 终止。" in report
    assert "The command" not in result.stderr + report


def test_only_existing_files_are_mentioned_at_the_end(tmp_path: Path) -> None:
    assert kept_line(tmp_path, "en") == kept_line(tmp_path / "none", "zh") == ""
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "rank0.log").write_text("")
    (tmp_path / "diagnosis.json").write_text("{}")
    assert kept_line(tmp_path, "en") == f"this diagnosis is in {tmp_path}"
    (tmp_path / "ranks" / "rank0.log").write_text("x")
    assert "copies of the run's output and this diagnosis are in" in kept_line(tmp_path, "en")
    (tmp_path / "diagnosis.json").unlink()
    assert kept_line(tmp_path, "en") == f"the copies of the run's output are in {tmp_path}"


@pytest.mark.parametrize(("given", "code"), [((), 0), (("--fail-on-finding",), 1)])
def test_hidden_failure_becomes_the_exit_code_on_request(
    process: Process, given: tuple[str, ...], code: int
) -> None:
    failing = f"{shlex.join(python(STEPS.format(steps=9, pause=0.2) + 'raise SystemExit(3)'))} | cat"
    result = process("run", "--no-metrics", *given, "--", "bash", "-c", failing)
    assert result.returncode == code
    assert "How the run ended: failed, after" in result.stderr and "exit code 0" not in result.stderr
    assert "The command returned 0, but one of its programs exited with code 3" in result.stderr


def test_fail_on_finding_keeps_exit_codes_of_open_failures_and_successes(process: Process) -> None:
    environ = {"STALLWATCH_RUN_FAIL_ON_FINDING": "true"}
    for code in (0, 3):
        result = process("run", "--no-metrics", "--", *python(f"raise SystemExit({code})"), env=environ)
        assert result.returncode == code


def test_run_is_recorded_in_tmpdir_if_the_state_folder_is_not_writable(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runs").write_text("no folder")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("STALLWATCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    failing = "print('step 1/9 loss 0.5'); raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')"
    done = process("run", "--no-metrics", "--name", "sft", "--", sys.executable, "-c", failing)
    assert done.returncode == 1
    (folder,) = (tmp_path / "tmp").glob("stallwatch-*/runs/sft")
    assert f"this run is stored in {folder}" in done.stderr
    assert f"The record of the run is in {folder}, because the state folder" in done.stderr
    (row,) = process("runs").stdout.splitlines()
    assert row.split("\t")[:2] == ["sft", "failed"]
    assert process("diagnose", str(folder)).returncode == 1
    named = process("diagnose", "--brief", str(tmp_path / "home" / "runs" / "sft"))
    assert named.returncode == 1 and "cuda-oom" in named.stdout


def test_endless_thread_does_not_delay_the_exit_code(tmp_path: Path) -> None:
    code = (
        "import sys, threading, stallwatch.cli as cli\n"
        "cli._EXIT_SECONDS = 0.1\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "sys.argv[1:] = ['run', '--no-metrics', '--', sys.executable, '-c', 'raise SystemExit(5)']\n"
        "cli.main()\n"
    )
    done = subprocess.run(python(code), cwd=tmp_path, capture_output=True, timeout=120)
    assert done.returncode == 5
