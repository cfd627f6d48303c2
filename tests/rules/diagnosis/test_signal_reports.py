"""A run whose process a signal ended is not reported as healthy, for any signal and any reporter."""

from __future__ import annotations

import pytest

from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis
from stallwatch_rules.report.json import schema_1_verdict

OTHER = "process-ended-by-signal"
SIGNALS = {
    1: ("SIGHUP", "Hangup", "sighup-terminal-closed"),
    3: ("SIGQUIT", "Quit", OTHER),
    4: ("SIGILL", "Illegal instruction", "process-sigill"),
    5: ("SIGTRAP", "Trace/breakpoint trap", OTHER),
    6: ("SIGABRT", "Aborted", "process-sigabrt"),
    7: ("SIGBUS", "Bus error", "process-sigbus"),
    8: ("SIGFPE", "Floating point exception", "floating-point-exception-core-dump"),
    9: ("SIGKILL", "Killed", "host-oom-sigkill"),
    10: ("SIGUSR1", "User defined signal 1", OTHER),
    11: ("SIGSEGV", "Segmentation fault", "process-segfault"),
    12: ("SIGUSR2", "User defined signal 2", OTHER),
    14: ("SIGALRM", "Alarm clock", OTHER),
    15: ("SIGTERM", "Terminated", "secondary-sigterm-cascade"),
    24: ("SIGXCPU", "CPU time limit exceeded", OTHER),
    25: ("SIGXFSZ", "File size limit exceeded", OTHER),
    31: ("SIGSYS", "Bad system call", OTHER),
    35: ("<N/A>", "Real-time signal 1", OTHER),
}
CORE = {3, 4, 5, 6, 7, 8, 11, 24, 25, 31}  #: a core is written, where the system's limits allow it
WAYS = {
    "shell": "{words}{core}",
    "script": "/srv/jobs/run.sh: line 42: 18231 {words} {core} python train.py --config c.yaml",
    "torchrun": "  traceback : Signal {number} ({name}) received by PID 4201",
    "deepspeed": "['/opt/venv/bin/python', '-u', 'train.py'] exits with return code = -{number}",
    "mpirun": "mpirun noticed that process rank 3 with PID 0 on node n7 exited on signal {number} ({words}).",
    "srun": "srun: error: node7: task 3: {words}{core}",
    "container": "container trainer-7 exited with code {code}",
    "mpich": "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: {words} (signal {number})",
    "make": "make: *** [Makefile:12: train] {words}{core}",
    "systemd": "systemd[1]: train.service: Main process exited, code={how}, status={number}/{short}",
}
STEPS = [
    f"{{'loss': {2 - step / 50:.4f}, 'grad_norm': 0.9{step % 7}, 'epoch': {step / 100}}}"
    for step in range(30)
]
END = "{'train_runtime': 301.2, 'train_samples_per_second': 13.2, 'train_loss': 1.72, 'epoch': 1.0}"


def line(number: int, way: str) -> str:
    name, words, _ = SIGNALS[number]
    core, how = (" (core dumped)", "dumped") if number in CORE else ("", "killed")
    short = "RTMIN+1" if number == 35 else name.removeprefix("SIG")
    found = WAYS[way].format(
        number=number, name=name, words=words, core=core, how=how, short=short, code=128 + number
    )
    # DeepSpeed's launcher sets its own prefix before it.
    return (
        f"[2026-03-11 04:22:10,118] [ERROR] [launch.py:325:sigkill_handler] {found}"
        if way == "deepspeed"
        else found
    )


def diagnosed(catalogue: Catalogue, *lines: str) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of("".join(f"{line}\n" for line in lines)))
    return rendered(reading.diagnose())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_is_recognized_from_each_reporter(catalogue: Catalogue, number: int, way: str) -> None:
    found = diagnosed(catalogue, *STEPS, line(number, way))
    by_shell = number == 15 and way in ("shell", "script")
    assert found.verdict in (("interrupted",) if by_shell else ("failed", "unknown-failure"))
    rule = "slurm-task-failed" if (number, way) == (15, "srun") else SIGNALS[number][2]
    assert found.primary is not None and found.primary.rule == rule


@pytest.mark.parametrize("number", [10, 15])
@pytest.mark.parametrize("way", ["script", "container", "systemd"])
def test_helper_ended_after_the_training_is_ignored(catalogue: Catalogue, number: int, way: str) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS, END, line(number, way))) == "healthy"


@pytest.mark.parametrize("number", SIGNALS)
def test_continuing_training_was_not_ended(catalogue: Catalogue, number: int) -> None:
    found = diagnosed(catalogue, *STEPS[:10], line(number, "script"), *STEPS[10:])
    assert schema_1_verdict(found) == "healthy"


EXITS = [
    "make: *** [Makefile:12: train] Error 1",
    "Process finished with exit code 1",
    "command terminated with exit code 1",
    "trainer-1 exited with code 1",
    "systemd[1]: train.service: Main process exited, code=exited, status=1/FAILURE",
    "mpirun detected that one or more processes exited with non-zero status, thus causing",
]


@pytest.mark.parametrize("expected", EXITS)
def test_reported_exit_status_is_an_unknown_failure(catalogue: Catalogue, expected: str) -> None:
    found = diagnosed(catalogue, *STEPS, expected)
    assert found.verdict == "unknown-failure"
    assert found.primary is not None and found.primary.rule == "command-exit-status"
    assert schema_1_verdict(diagnosed(catalogue, *STEPS[:10], expected, *STEPS[10:])) == "healthy"


@pytest.mark.parametrize(
    "expected", [EXITS[3].replace("trainer", "sidecar"), EXITS[4].replace("train.", "exporter.")]
)
def test_exit_of_a_helper_after_the_training_is_ignored(catalogue: Catalogue, expected: str) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS, END, expected)) == "healthy"


HELPERS = [
    "./run.sh: line 31:  7001 Segmentation fault      (core dumped) nvtop",
    "./run.sh: line 31:  7001 User defined signal 1   sleep 3600",
    "./run.sh: line 31:  7001 Terminated              python gpu_monitor.py > gpu.csv",
    "./run.sh：第 31 行： 7001 已杀死               tensorboard --logdir runs",
    "zsh: hangup     ssh -N -L 8000:127.0.0.1:8000 host",
    "tensorboard-1 exited with code 137",
    "node-exporter-1 exited with code 2",
    "systemd[1]: nvidia-persistenced.service: Main process exited, code=killed, status=9/KILL",
    "systemd[2210]: dbus.service: Main process exited, code=killed, status=1/HUP",
    "systemd[1]: docker.service: Main process exited, code=exited, status=1/FAILURE",
    "make: *** [Makefile:9: monitor] Terminated",
]


@pytest.mark.parametrize("expected", HELPERS)
def test_named_helper_is_not_the_training(catalogue: Catalogue, expected: str) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS, expected)) == "healthy"
    assert diagnosed(catalogue, *STEPS, expected, line(9, "script")).verdict == "failed"


@pytest.mark.parametrize(
    "expected",
    [
        *EXITS,
        "Hangup",
        "Alarm clock",
        "vllm-1 exited with code 129",
        "make: *** [Makefile:12: train] Terminated",
        "./run.sh: line 31:  7001 Killed                  python -m vllm.entrypoints.openai.api_server",
        "./run.sh: line 31:  7001 Killed                  bash gpu_loop.sh",
        "systemd[1]: chat.service: Main process exited, code=dumped, status=6/ABRT",
    ],
)
def test_process_that_ends_after_a_finished_training_is_not_a_failure(
    catalogue: Catalogue, expected: str
) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS, END, expected)) == "healthy"


@pytest.mark.parametrize("number", [9, 11])
@pytest.mark.parametrize("way", ["script", "shell", "srun"])
def test_training_killed_during_a_save_has_failed(catalogue: Catalogue, number: int, way: str) -> None:
    assert diagnosed(catalogue, *STEPS, END, line(number, way)).verdict == "failed"


@pytest.mark.parametrize("expected", EXITS)
def test_step_after_an_exit_status_shows_another_command(catalogue: Catalogue, expected: str) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS[:10], expected, STEPS[10])) == "healthy"
    assert schema_1_verdict(diagnosed(catalogue, expected, *STEPS[:2])) == "healthy"


@pytest.mark.parametrize(
    "expected", ["reward: exit code: 143", "Alarm clock", "Process finished with exit code 1"]
)
def test_programs_of_a_reward_function_can_end_in_each_step(catalogue: Catalogue, expected: str) -> None:
    lines = [text for step in STEPS for text in (step, expected)]
    assert diagnosed(catalogue, *lines).verdict == "unfinished"
    restarts = [text for first in range(0, 30, 10) for text in (*STEPS[first : first + 10], expected)]
    assert diagnosed(catalogue, *restarts).verdict != "healthy"


@pytest.mark.parametrize(
    "expected",
    [
        "upload.sh exited with code 1",
        "lm_eval exited with code 1, trying again",
        "make: [Makefile:3: lint] Error 1 (ignored)",
        "make: *** [Makefile:12: train] Error 130",
    ],
)
def test_other_messages_do_not_end_the_run(catalogue: Catalogue, expected: str) -> None:
    assert schema_1_verdict(diagnosed(catalogue, *STEPS, expected)) == "healthy"


def test_launcher_that_ends_all_ranks_ends_the_run(catalogue: Catalogue) -> None:
    messages = [f"Sending process {pid} closing signal SIGTERM" for pid in range(7400, 7408)]
    assert diagnosed(catalogue, *STEPS[:10], *messages, *STEPS[10:20], *messages).verdict == "failed"
