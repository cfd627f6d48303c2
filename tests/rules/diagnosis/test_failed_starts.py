"""Failures without a traceback: usage texts, shells, syntax errors, containers, MPI, compiled code.

The programs themselves printed the texts (Python 3.11, bash 5.2, dash, Open MPI 4.1, fire), or the texts
follow their formats; paths are changed.
"""

from __future__ import annotations

import pytest
from smallruns import primary, raised, steps

from stallwatch_rules.endings import Ending
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis, Line

USAGE = "usage: train.py [-h] --lr LR [--data {c4,pile}] {go} ...\n"
HELP = f"{USAGE}\noptions:\n  -h, --help        show this help message and exit\n  --lr LR\n"
NOT_FOUND = "run.sh: line 2: torchrunn: command not found\n"
NAME = "program-not-found"
MODULE = "run.sh: line 1: module: command not found\n"
CANNOT_OPEN = "/usr/bin/python: can't open file '/srv/train.py': [Errno 2] No such file or directory\n"
#: Output of DeepSpeed's launcher about its processes (deepspeed 0.19.8, launcher/launch.py).
DEEPSPEED = (
    "[2026-05-02 10:00:28,055] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 59557\n"
    "[2026-05-02 10:00:28,063] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py']"
    " exits with return code = 2\n"
)
FAILED = {
    '  File "/srv/run/train.py", line 2\n    for i in range(3)\n                     ^\n'
    "SyntaxError: expected ':'\n": "source-syntax-error",
    '  File "train.py", line 4\n    y = 2\nIndentationError: unexpected indent\n': "source-syntax-error",
    f"{USAGE}train.py: error: --resume needs a folder\n": "config-argparse-error",
    USAGE: "usage-text-printed",
    f"{MODULE}{USAGE}": "usage-text-printed",
    "Usage:\n  train.py --lr=<lr>\n  train.py (-h | --help)\n": "usage-text-printed",
    "ERROR: The function received no value for the required argument: lr\nUsage: train.py LR <flags>\n"
    "  optional flags:        --steps\n": "usage-text-printed",
    NOT_FOUND: "program-not-found",
    f"{MODULE}{NOT_FOUND}": "program-not-found",
    CANNOT_OPEN: "program-not-found",
    f"Loading modules\n{NOT_FOUND}Job finished at Thu\n": "program-not-found",
    CANNOT_OPEN + DEEPSPEED: "program-not-found",
    "run.sh: line 3: torchrun: command not found\n": "program-not-found",
    "run.sh: 行 3: torchrun: 未找到命令\n": "program-not-found",
    "run.sh：第 3 行：foo：未找到命令\n": "program-not-found",
    "sudo: pythn: command not found\n": "program-not-found",
    "/usr/bin/env: ‘pythn’: No such file or directory\n": "program-not-found",
    "zsh: no such file or directory: ./train.sh\n": "program-not-found",
    'run.sh: 4: Syntax error: end of file unexpected (expecting "fi")\n': "start-script-error",
    f"run.sh: line 1: cd: /nope: No such file or directory\n{CANNOT_OPEN}": "start-script-error",
    "sbatch: error: Batch job submission failed: Invalid partition name\n": "slurm-request-refused",
    "docker: permission denied while trying to connect to the daemon socket.\n": "container-not-started",
    "There are not enough slots available in the system to satisfy the 64\n"
    "slots that were requested by the application:\n\n  ./train\n": "mpi-slots-missing",
    "mpirun was unable to launch the specified application as it could not access\n"
    "or execute an executable:\n"
    "\nExecutable: ./train\nNode: node07\n\nwhile attempting to start process rank 0.\n": "program-not-found",
}
#: Ends of programs in other languages, and the exception under which they are reported.
CRASHES = {
    "train: train.cpp:6: int main(int, char**): Assertion `c==7' failed.\n": "Assertion",
    "terminate called after throwing an instance of 'std::out_of_range'\n"
    "  what():  vector::_M_range_check: __n (which is 3)\n": "std::out_of_range",
    "/opt/torch/bin/luajit: train.lua:12: attempt to index global 'opt' (a nil value)\n"
    "stack traceback:\n\ttrain.lua:12: in main chunk\n": "attempt to index",
    "Error executing job with overrides: []\nError in call to target 'builtins.dict':\n"
    "TypeError(\"'int' object is not iterable\")\nfull_key: encoder\n": "Error in call to target",
    "ERROR: LoadError: UndefVarError: model not defined\nStacktrace:\n": "LoadError",
}
PREPARED = "Reading the corpus\nVocabulary built\n"
BLOCK, PARSE = next(iter(FAILED)), "SyntaxError: invalid syntax"
#: Output of programs that continued, or that started without a failure.
HARMLESS = (
    NOT_FOUND + PREPARED,
    "run.sh: line 3: jq: command not found\nrun.sh: line 4: bc: command not found\nsolving ...\nconverged\n",
    f"/home/u/.bashrc: line 12: /opt/foo/env.sh: No such file or directory\n{PREPARED}",
    f"run.sh: line 4: cd: /scratch/me: No such file or directory\n{PREPARED}",
    USAGE + PREPARED,
    HELP,
    MODULE + HELP,
    f"Usage: 40 GB of 80 GB\n{PREPARED}",
    "CPU usage: 12 %\nusage: 12.3 GB\nUsage: 40%\n",
    f"unknown option 'foo' in config, ignored\n{PREPARED}",
    f"Error using fallback kernel for layer norm\n{PREPARED}",
    f"Undefined function or variable 'x' in prompt template, skipped\n{PREPARED}",
    f"running problem 1\n{PARSE} (<string>, line 1)\nrunning problem 2\n",
    f"{PARSE} (<unknown>, line 3)\n" * 30 + "All problems scored\n",
    f"{steps(1, 9)}[reward] sandbox stderr:\n{PARSE}\n",
    f"{steps(1, 9)}{PARSE}\n{steps(10, 12)}",
    steps(1, 9) + BLOCK,
)
QUIET = ("finished", "healthy", "unfinished", "no-evidence", "no-training-log")


def diagnosed(catalogue: Catalogue, text: str, now: float | None = None) -> Diagnosis:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    return reading.diagnose(now=now)


@pytest.mark.parametrize("text", FAILED)
def test_log_of_only_a_failed_start_is_a_failure(catalogue: Catalogue, text: str) -> None:
    found = diagnosed(catalogue, text)
    assert (found.verdict, primary(found)) == ("failed", FAILED[text])


@pytest.mark.parametrize("text", HARMLESS)
def test_survived_startup_error_is_not_a_failure(catalogue: Catalogue, text: str) -> None:
    found = diagnosed(catalogue, text)
    assert found.verdict in QUIET and found.primary is None


@pytest.mark.parametrize(
    ("text", "code", "rule"),
    [
        (NOT_FOUND + PREPARED, 3, ""),  # the last line of the program may contain the reason
        (HELP, 1, "usage-text-printed"),
        (NOT_FOUND, 127, "program-not-found"),
        (NOT_FOUND, 0, ""),
    ],
)
def test_exit_code_decides_about_a_start(catalogue: Catalogue, text: str, code: int, rule: str) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of(text))
    found = reading.diagnose(Ending("failed" if code else "finished", code))
    assert (found.primary.rule if found.primary is not None else "") == rule
    assert found.in_trouble == bool(code)


@pytest.mark.parametrize(("later", "code", "rule"), [(0.1, 3, ""), (-60.0, 3, NAME), (0.1, 127, NAME)])
def test_output_and_errors_can_be_in_separate_streams(
    catalogue: Catalogue, later: float, code: int, rule: str
) -> None:
    reading = RunReading(catalogue)
    reading.feed([Line(NOT_FOUND.strip(), "stderr", 1, None, 1_790_000_000.0)])
    reading.feed([Line("Reading the corpus", "stdout", 1, None, 1_790_000_000.0 + later)])
    found = reading.diagnose(Ending("failed", code))
    assert (found.primary.rule if found.primary is not None else "") == rule


@pytest.mark.parametrize("text", CRASHES)
def test_crashes_of_programs_in_other_languages_are_recognized(catalogue: Catalogue, text: str) -> None:
    found = diagnosed(catalogue, steps(1, 9) + text)
    assert (found.verdict, found.unknown[0].exception) == ("unknown-failure", CRASHES[text])


@pytest.mark.parametrize("text", [HELP, NOT_FOUND, MODULE + HELP])
def test_start_script_can_continue_after_an_error(catalogue: Catalogue, text: str) -> None:
    trained = diagnosed(catalogue, text + steps(1, 20))
    after = diagnosed(catalogue, steps(1, 20, total=20) + NOT_FOUND)
    loading = diagnosed(catalogue, text + "".join(f"loading shard {n} of 80\n" for n in range(80)))
    watched = diagnosed(catalogue, text, now=1_790_000_000.0)
    for found in (trained, after, loading, watched):
        assert found.verdict in QUIET and found.primary is None


def test_later_failure_is_the_cause(catalogue: Catalogue) -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert primary(diagnosed(catalogue, MODULE + raised(error))) == "cuda-oom"
    assert diagnosed(catalogue, MODULE + raised("OddError: 7")).verdict == "unknown-failure"


@pytest.mark.parametrize(
    ("below", "rule"),
    [
        (steps(30, 30), None),
        (PREPARED + raised("OddError: 7"), None),
        (raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), "cuda-oom"),
        (PREPARED, "config-argparse-error"),
        (raised("RuntimeError: process 3 exited with code 2"), "config-argparse-error"),
        (raised("RuntimeError: [../gloo/pair.cc:5] Connection closed by peer"), "config-argparse-error"),
    ],
)
def test_rejected_start_is_not_the_cause_after_another_start(
    catalogue: Catalogue, below: str, rule: str | None
) -> None:
    error = f"{USAGE}train.py: error: argument --resume: expected one argument\n"
    assert primary(diagnosed(catalogue, error + below)) == rule
    assert primary(diagnosed(catalogue, below + error)) == (rule or "config-argparse-error")


def test_broken_generated_code_is_not_a_failure(catalogue: Catalogue) -> None:
    assert diagnosed(catalogue, steps(1, 9) + BLOCK + steps(10, 20)).verdict == "unfinished"
    imported = (
        f'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in <module>\n    import b\n{BLOCK}'
    )
    assert primary(diagnosed(catalogue, steps(1, 9) + imported)) == "source-syntax-error"
