"""The ending of a run as a table, and with a real SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stallwatch_exporter.running.ending import EndingWatch, classify, read_oom_kills
from stallwatch_rules.endings import Ending
from stallwatch_rules.locale import render
from stallwatch_rules.messages import message

CGROUP = {"cgroup": 0, "host": 7}
OOM_HERE = {"oom": (CGROUP, {"cgroup": 1, "host": 8})}
OOM_ELSEWHERE = {"oom": (CGROUP, {"cgroup": 0, "host": 8})}
TORCHRUN = ["  exitcode  : -9 (pid: 4711)", "  traceback : Signal 9 (SIGKILL) received by PID 4711"]
SLURM = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-21T00:00:00 DUE TO {} ***"


@pytest.mark.parametrize(
    ("returncode", "facts", "kind", "exit_code", "signal_name", "words"),
    [
        (0, {}, "finished", 0, None, "exited with code 0"),
        (0, OOM_HERE, "finished", 0, None, "exited with code 0"),
        (1, {}, "failed", 1, None, "exited with code 1"),
        (200, {}, "failed", 200, None, "exited with code 200"),
        (-9, {}, "killed", 137, "SIGKILL", "ended by SIGKILL"),
        (
            -9,
            OOM_HERE,
            "oom-killed",
            137,
            "SIGKILL",
            "OOM killer killed one process in this run's control group",
        ),
        (-9, OOM_ELSEWHERE, "oom-killed", 137, "SIGKILL", "on this machine"),
        (137, OOM_ELSEWHERE, "oom-killed", 137, "SIGKILL", "128 + 9"),
        (1, OOM_HERE, "oom-killed", 1, None, "control group"),
        (1, OOM_ELSEWHERE, "failed", 1, None, "exited with code 1"),
        (1, {**OOM_ELSEWHERE, "last_lines": TORCHRUN}, "oom-killed", 1, None, "on this machine"),
        (1, {"last_lines": TORCHRUN}, "failed", 1, None, "exited with code 1"),
        (137, {}, "killed", 137, "SIGKILL", "128 + 9"),
        (247, {}, "killed", 247, "SIGKILL", "256 - 9"),
        (245, {}, "killed", 245, "SIGSEGV", "256 - 11"),
        (-11, {}, "killed", 139, "SIGSEGV", "ended by SIGSEGV"),
        (-15, {}, "killed", 143, "SIGTERM", "ended by SIGTERM"),
        (-15, {"passed_on": signal.SIGTERM}, "killed", 143, "SIGTERM", "sent to stallwatch"),
        (1, {"passed_on": signal.SIGTERM}, "killed", 1, "SIGTERM", "sent to stallwatch"),
        (-2, {}, "interrupted", 130, "SIGINT", "SIGINT"),
        (1, {"interrupted": True}, "interrupted", 1, None, "Control+C"),
        (130, {}, "interrupted", 130, "SIGINT", "128 + 2"),
        (124, {}, "time-limit", 124, None, "timeout(1)"),
        (-15, {"slurm_end": 100.0, "now": 101.0}, "time-limit", 143, "SIGTERM", "SLURM_JOB_END_TIME"),
        (-15, {"slurm_end": 100.0, "now": 99.0}, "killed", 143, "SIGTERM", "SIGTERM"),
        (1, {"slurm_end": 100.0, "now": 101.0}, "failed", 1, None, "exited with code 1"),
        (
            -15,
            {"last_lines": [SLURM.format("TIME LIMIT")]},
            "time-limit",
            143,
            "SIGTERM",
            "(reason: time limit)",
        ),
        (
            -15,
            {"last_lines": [SLURM.format("PREEMPTION")]},
            "killed",
            143,
            "SIGTERM",
            "(reason: preemption)",
        ),
        (-15, {"oom": ({}, {"host": 9})}, "killed", 143, "SIGTERM", "SIGTERM"),
    ],
)
def test_ending_follows_from_the_evidence(
    returncode: int, facts: dict[str, Any], kind: str, exit_code: int, signal_name: str | None, words: str
) -> None:
    ending = classify(returncode, seconds=3.0, **facts)
    assert (ending.kind, ending.exit_code, ending.signal, ending.seconds) == (
        kind,
        exit_code,
        signal_name,
        3.0,
    )
    detail = render(ending.detail)
    assert words in detail and detail[0].isupper() and detail.endswith(".")


def test_counters_of_both_cgroup_versions_are_read(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "vmstat").write_text("pgfault 1\noom_kill 5\n")
    (groups / "job" / "step").mkdir(parents=True)
    (groups / "job" / "step" / "memory.events").write_text("low 0\noom 2\noom_kill 3\noom_group_kill 0\n")
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")

    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    assert read_oom_kills(proc, groups) == {"host": 5, "cgroup": 3}
    (proc / "self" / "cgroup").write_text("5:cpu:/x\n4:memory,blkio:/docker/abc\n0::/\n")
    assert read_oom_kills(proc, groups) == {"host": 5, "cgroup": 4}
    assert read_oom_kills(tmp_path / "none", groups) == {}


def test_real_sigkill_is_reported() -> None:
    watch = EndingWatch()
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    ending = classify(child.wait(), oom=watch.counts, seconds=1.0, now=time.time())
    assert ending.signal == "SIGKILL" and ending.exit_code == 137
    assert ending.kind in ("killed", "oom-killed")  # the machine's own OOM killer may interfere


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (classify(0), "命令退出，退出码 0。"),
        (classify(3), "命令退出，退出码 3。"),
        (classify(-9), "命令被 SIGKILL 终止。"),
        (
            classify(-9, passed_on=signal.SIGTERM),
            "stallwatch 收到 SIGTERM 并转发给命令；命令被 SIGKILL 终止。",
        ),
        (classify(124), "timeout(1) 设定的时间到了（退出码 124）。"),
        (classify(-2), "训练被中断（Ctrl-C，SIGINT）；命令被 SIGINT 终止。"),
        (
            classify(-9, oom=({"cgroup": 0}, {"cgroup": 1})),
            "内核 OOM killer 杀掉了本次任务 cgroup 里的一个进程；命令被 SIGKILL 终止。",
        ),
        (Ending("unknown", None, detail=message("run.stopped-watching")), "监控已停止。"),
        (Ending("unknown", None, detail="As version 0.1 wrote it."), "As version 0.1 wrote it."),
    ],
)
def test_ending_is_described_in_the_selected_language(ending: Ending, expected: str) -> None:
    assert render(ending.detail, "zh") == expected
