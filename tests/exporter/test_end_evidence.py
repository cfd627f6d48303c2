"""Outcome of real runs whose command returned 0: a shell hides the exit codes of the training."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from optimizer import MADE, put_torch

from stallwatch_exporter.incident import Incident
from stallwatch_exporter.postmortem.diagnose import Options, diagnose_paths
from stallwatch_exporter.running.command import run_command
from stallwatch_exporter.runs.runfolder import RunFolder
from stallwatch_exporter.settings import ExporterSettings
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render, rendered
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Diagnosis

# Prints its steps; its last argument is the code that it runs then.
PLAIN = """
import os, signal, sys, time, traceback
steps, end = int(sys.argv[1]), sys.argv[2]
for step in range(1, steps + 1):
    print(f"step {step}/6250 loss {1 / step:.4f}", flush=True)
    time.sleep(0.01)
exec(end)
"""
# The same program with an optimizer, so that it has a ring.
TORCH = MADE + PLAIN.replace("    print(f", "    optimizer.step()\n    print(f")
DIES = "raise ValueError('the batch has no labels')"
IS_KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
HANDLED = "try: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()"
DIVERGES = "for step in range(61, 70): print(f'step {step}/6250 loss nan')"
HELPER = f"{sys.executable} -c 'import time; time.sleep(99)'"
OUT_OF_MEMORY = "sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.')"


class Watched:
    """A watched shell script, and its diagnosis."""

    def __init__(self, given: list[Incident], code: int, end: tuple[Diagnosis, Ending, RunFolder]) -> None:
        self.sent, self.code = given, code
        self.diagnosis, self.ending, self.folder = end

    @property
    def detail(self) -> str:
        return render(self.ending.detail)


@pytest.fixture
def shell(tmp_path: Path, catalogue: Catalogue) -> Callable[[str], Watched]:
    """Return a function that runs a bash script under watch.

    In the script, ``plain`` and ``torch`` start the two trainings.
    """
    trainings = tmp_path / "trainings"
    put_torch(trainings)

    def start(script: str) -> Watched:
        for name, source in (("plain", PLAIN), ("torch", TORCH)):
            (trainings / f"train_{name}.py").write_text(source)
            script = script.replace(f"{name} ", f"{sys.executable} {trainings}/train_{name}.py ")
        messages: list[Incident] = []
        ends: list[Any] = []
        settings = ExporterSettings(home=tmp_path / "home", port=0)
        command = ["bash", "-c", script]
        on_end = ends.append
        code = run_command(
            command, settings, [messages.append], catalogue, metrics=False, on_end=lambda *end: on_end(end)
        )
        return Watched(messages, code, ends[0])

    return start


def ends(how: str) -> str:
    return shlex.quote(how)


@pytest.mark.parametrize(
    ("training", "how", "kind", "said"),
    [
        ("plain", DIES, "failed", "failed with ValueError: the batch has no labels"),
        ("torch", DIES, "failed", "failed with ValueError: the batch has no labels"),
        ("plain", OUT_OF_MEMORY, "failed", "failed with torch.OutOfMemoryError: CUDA out of memory."),
        ("plain", IS_KILLED, "killed", "was ended by SIGKILL, at step 150 of 6,250"),
        ("torch", IS_KILLED, "killed", "was ended by SIGKILL, at step 150 of 6,250"),
        ("plain", "os._exit(3)", "failed", "exited with code 3, at step 150 of 6,250"),
    ],
)
def test_pipe_does_not_hide_a_crash(
    shell: Callable[[str], Watched], catalogue: Catalogue, training: str, how: str, kind: str, said: str
) -> None:
    run = shell(f"{training} 150 {ends(how)} 2>&1 | cat")
    assert (run.code, run.ending.kind, run.ending.exit_code) == (0, kind, 0)
    who = "rank 0" if training == "torch" else "one of its programs"
    assert run.detail.startswith(f"The command returned 0, but {who} {said}")
    assert "at step 150 of 6,250; a pipe hides exit codes: use `set -o pipefail`." in run.detail
    assert run.diagnosis.verdict in ("failed", "unknown-failure")
    assert run.sent[-1].kind == "ended" and run.sent[-1].ending == run.ending
    assert run.folder.info.state == "failed" and run.folder.info.ending == run.ending
    later, *_ = rendered(diagnose_paths([run.folder.path], Options(catalogue)))
    assert (later.verdict, later.ending) == (run.diagnosis.verdict, render(run.diagnosis.ending))
    assert "`set -o pipefail`" in render(run.ending.detail, "zh") and "命令返回 0" in render(
        run.ending.detail, "zh"
    )


@pytest.mark.parametrize("training", ["plain", "torch"])
def test_killed_rank_in_a_background_job_is_named(shell: Callable[[str], Watched], training: str) -> None:
    run = shell(f"RANK=0 {training} 200 pass & RANK=1 {training} 30 {ends(IS_KILLED)} & wait")
    assert (run.code, run.ending.kind, run.ending.signal) == (0, "killed", "SIGKILL")
    crash = run.ending.crash
    assert crash is not None and (crash.rank, crash.code, crash.hidden) == (1, -signal.SIGKILL, "wait")
    assert crash.step is not None and crash.step < 200
    assert run.diagnosis.primary is not None and run.diagnosis.primary.rank == 1
    assert run.sent[-1].kind == "ended"


SPAWNED = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import multiprocessing

def main(rank, store, end):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 9999):
        model(torch.ones(1, 2)).sum().backward(); optimizer.step(); optimizer.zero_grad()
        time.sleep(0.02)
        if rank == 0:
            print(f"step {step}/6250 loss {1 / step:.4f}", flush=True)
        elif step == 100:
            exec(end)

if __name__ == "__main__":
    method, *args = sys.argv[1:]
    multiprocessing.start_processes(main, tuple(args), nprocs=2, start_method=method)
"""


@pytest.mark.parametrize(
    ("method", "how", "rule", "exception"),
    [
        ("fork", IS_KILLED, "process-killed-from-outside", ""),
        ("spawn", "raise KeyError('row 7')", "unknown-failure", "KeyError: 'row 7' (spawned.py:17)"),
    ],
)
def test_spawned_rank_without_a_rank_variable_is_named(
    shell: Callable[[str], Watched],
    catalogue: Catalogue,
    tmp_path: Path,
    method: str,
    how: str,
    rule: str,
    exception: str,
) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    run = shell(f"{sys.executable} {tmp_path}/spawned.py {method} {tmp_path}/store {ends(how)}")
    assert list(run.ending.codes)[:1] == [1]
    (found,) = run.sent
    assert (found.kind, found.rule, found.rank, found.exception) == ("ended", rule, 1, exception)
    later, *_ = rendered(diagnose_paths([run.folder.path], Options(catalogue)))
    assert later.verdict == run.diagnosis.verdict
    assert [item.ranks for item in later.unknown] == [item.ranks for item in run.diagnosis.unknown]
    assert (later.primary.rank if later.primary else 1) == 1


def test_killed_rank_without_a_probe_is_reported_live(
    shell: Callable[[str], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallwatch_exporter.watching.lost_ranks.GONE_SECONDS", 1.0)
    monkeypatch.setattr("stallwatch_exporter.watching.probe_intake.ENDING_SECONDS", 1.0)
    run = shell(f"RANK=0 plain 700 pass & RANK=1 plain 100 {ends(IS_KILLED)} & wait")
    gone = run.sent[0]
    assert (gone.kind, gone.rule, gone.rank) == ("finding", "rank-gone", 1)
    assert render(gone.note).startswith(
        "The process of rank 1 is gone, and the other ranks continue without this rank. "
        "The termination signal was SIGKILL."
    )
    assert (run.ending.kind, run.sent[-1].resolution) == ("killed", "run-failed")


@pytest.mark.parametrize(
    "script",
    [
        # an early stop
        "plain 60 pass 2>&1 | cat",
        "torch 60 'os._exit(0)' 2>&1 | cat",
        # a killed helper without a rank, at the script's end or in the middle
        "sleep 100 & H=$!; torch 60 pass; kill -9 $H; wait",
        f"{HELPER} & H=$!; torch 60 pass; kill -9 $H; wait",
        f"{HELPER} & H=$!; (sleep 1; kill -9 $H) & plain 400 pass; true",
        # a failure that was retried or handled
        f"torch 40 {ends(IS_KILLED)} || torch 60 pass; true",
        'plain 60 \'import subprocess; subprocess.run([sys.executable, "-c", "1/0"])\' 2>&1 | cat',
        f"plain 60 {ends(HANDLED)} 2>&1 | cat",
        # the last line belongs to a traceback
        "plain 60 'import atexit; atexit.register(lambda: 1 / 0); print(\"Training completed.\")' 2>&1 | cat",
        # a rank that the script kills after another rank has finished
        "RANK=1 plain 9999 pass & RANK=0 plain 150 pass; kill %1; wait",
    ],
)
def test_successful_run_has_finished(shell: Callable[[str], Watched], script: str) -> None:
    run = shell(script)
    assert (run.code, run.ending.kind, run.ending.crash) == (0, "finished", None), run.detail
    assert run.diagnosis.verdict == "finished"
    assert not any(incident.kind == "ended" for incident in run.sent)


def test_final_nan_loss_is_a_failure(shell: Callable[[str], Watched]) -> None:
    run = shell(f"plain 60 {ends(DIVERGES)}")
    assert (run.code, run.ending.kind) == (0, "failed")
    assert run.detail == "The command returned 0, but its loss was NaN at the end, at step 69 of 6,250."
    assert run.diagnosis.verdict == "failed" and render(run.diagnosis.ending) == run.detail
    assert (run.sent[-1].kind, run.sent[-1].rule, run.sent[-1].ending) == ("ended", "loss-nan", run.ending)


def test_rank_that_ends_after_the_command_was_not_killed(
    shell: Callable[[str], Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the parent has reaped it
    monkeypatch.setattr("stallwatch_exporter.rings.exits.exit_code", lambda *_: None)
    monkeypatch.setattr("stallwatch_exporter.running.end_evidence._PATIENCE", 20.0)  # a machine may be busy
    done = tmp_path / "done"
    end = shlex.quote(f"open({str(done)!r}, 'w'); time.sleep(0.4)")
    run = shell(f"RANK=0 torch 60 {end} > /dev/null 2>&1 & until [ -e {done} ]; do sleep 0.02; done")
    assert (run.ending.kind, run.ending.crash) == ("finished", None), run.detail


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Callable[[], int]]:
    pid = tmp_path / "pid"

    def number() -> int:
        return int(pid.read_text())

    yield number
    os.kill(number(), signal.SIGKILL)


def test_rank_that_outlives_the_command_is_named(
    shell: Callable[[str], Watched], tmp_path: Path, orphan: Callable[[], int]
) -> None:
    run = shell(f"RANK=2 plain 9999 pass > /dev/null 2>&1 & echo $! > {tmp_path / 'pid'}; plain 150 pass")
    assert run.ending.kind == "finished"
    assert f"Rank 2 (PID {orphan()}) is still running." in run.detail
    assert f"rank 2 (PID {orphan()}) 仍在运行" in render(run.ending.detail, "zh")


def test_processes_are_checked_once_a_second(
    watch: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    run = watch()
    monkeypatch.setattr(run.agent.end_evidence.programs, "look", lambda: looks.append(run.now))
    for _ in range(200):  # checks are more frequent while the command starts
        run.now += 0.1
        run.agent.tick(run.now)
    assert 10 <= sum(at > run.now - 10 for at in looks) <= 12
