"""Memory use at the time of a kill: by ranks, by the kernel's counters, and by the pod's name."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from stallwatch_exporter.probe.api import Probe
from stallwatch_exporter.rings.probing import Probing, make_folder
from stallwatch_exporter.running.capture import Chunk
from stallwatch_exporter.running.ending import EndingWatch, classify
from stallwatch_exporter.running.memory import MemoryHeld, memory_limit
from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.locale import render

GIB = 2**30
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "sft-worker-0"}
TORCHRUN = ["  error_file: <N/A>", "  traceback : Signal 9 (SIGKILL) received by PID 4711"]


def held() -> MemoryHeld:
    memory = MemoryHeld()
    memory.rank(0, {"resident_bytes": 9.0 * GIB})
    memory.rank(3, {"resident_bytes": 61.2 * GIB})
    memory.rank(3, {"resident_bytes": 2.0 * GIB, "loss": 1.0})  # the rank's peak counts, not its current use
    memory.rank(1, {"resident_bytes": float("nan")})
    memory.rank(-1, {"resident_bytes": 99.0 * GIB})  # not a rank
    memory.command(100 * GIB, 128 * GIB)
    memory.command(50 * GIB, 128 * GIB)
    return memory


@pytest.mark.parametrize(
    ("ending", "lines"),
    [
        (classify(-9), []),
        (classify(137), []),
        (classify(1, last_lines=TORCHRUN), TORCHRUN),
        (classify(1, oom=({"cgroup": 0}, {"cgroup": 1})), []),
        (msgspec.structs.replace(classify(1), codes={3: -9, 0: -15}), []),  # no launcher reports it
    ],
)
def test_kill_names_the_rank_with_most_memory(ending: Ending, lines: list[str]) -> None:
    found = held().with_memory(ending, lines, {})
    assert render(found.detail) == (
        f"{render(ending.detail)} Rank 3 used the most memory, up to 61.2 GiB. "
        "All processes of the command together used up to 100.0 GiB of memory, and the limit is 128.0 GiB."
    )
    assert (found.kind, found.exit_code, found.signal) == (ending.kind, ending.exit_code, ending.signal)
    counted = True if ending.kind == "oom-killed" else None
    ranks = {0: 9 * GIB, 3: int(61.2 * GIB)}
    assert found.memory == MemoryUse(counted=counted, held=100 * GIB, limit=128 * GIB, ranks=ranks)


def test_little_memory_is_not_shown_as_zero(run: Any) -> None:
    run.agent.memory.rank(0, {"resident_bytes": 9000.0})
    run.agent.memory.command(int(10.8 * 2**20), 128 * GIB)
    for step in range(20):
        run.agent.feed(Chunk("stdout", b"step %d/60 loss 0.5\n" % step, run.now))
    diagnosis = run.agent.end(classify(-9, oom=({"host": 4}, {"host": 4})))
    found = run.agent.ending
    assert "Rank 0 used the most memory, up to 8.8 KiB." in render(found.detail)
    assert "used up to 10.8 MiB of memory, and the limit is 128.0 GiB." in render(found.detail)
    assert "最高占用 10.8 MiB，上限为 128.0 GiB。" in render(found.detail, "zh")
    assert "10.8 MiB of memory, and the limit is 128.0 GiB" in render(diagnosis.findings[0].note)
    # the run's length is not the reading time
    assert diagnosis.stats.lines == 20 and diagnosis.stats.seconds == 0


def test_kill_not_counted_by_the_kernel_is_reported_as_such(run: Any) -> None:
    """The test covers the path from the counters to the verdict."""
    ending = classify(-9, oom=({"host": 4}, {"host": 4}))
    for step in range(20):
        run.agent.feed(Chunk("stdout", b"step %d/60 loss 0.5\n" % step, run.now))
    run.agent.memory.rank(0, {"resident_bytes": 9.0 * GIB})
    run.agent.memory.command(GIB, 128 * GIB)
    primary = run.agent.end(ending).primary
    found = msgspec.json.decode(msgspec.json.encode(run.agent.ending), type=Ending)
    assert found.memory is not None and found.memory.counted is False and found.memory.ranks[0] == 9 * GIB
    assert primary is not None and primary.rule == "process-killed-from-outside"


@pytest.mark.parametrize("ending", [classify(0), classify(1), classify(-11), classify(-15)])
def test_other_endings_are_reported_unchanged(ending: Ending) -> None:
    assert held().with_memory(ending, ["Epoch 1"], POD) == ending


def test_unknown_memory_is_not_mentioned() -> None:
    assert MemoryHeld().with_memory(classify(-9), [], {}) == classify(-9)


def test_pod_is_named_in_kubernetes() -> None:
    killed = MemoryHeld().with_memory(classify(-9), [], POD)
    assert killed.kind == "killed"
    assert "`kubectl describe pod sft-worker-0` shows whether the Pod was OOMKilled or evicted" in render(
        killed.detail
    )
    oom = MemoryHeld().with_memory(classify(-9, oom=({"cgroup": 0}, {"cgroup": 1})), [], POD)
    assert "Kubernetes reports this ending as OOMKilled" in render(oom.detail)
    assert "(Pod sft-worker-0)" in render(oom.detail)


def test_memory_is_described_in_chinese() -> None:
    found = held().with_memory(classify(-9, oom=({"cgroup": 0}, {"cgroup": 1})), [], POD)
    assert render(found.detail, "zh") == (
        "内核 OOM killer 杀掉了本次任务 cgroup 里的一个进程；命令被 SIGKILL 终止。"
        "rank 3 占用内存最多，最高 61.2 GiB。"
        "该命令的所有进程合计最高占用 100.0 GiB，上限为 128.0 GiB。"
        "这就是 Kubernetes 里的 OOMKilled：pod sft-worker-0 的容器达到了内存上限。"
    )
    asked = MemoryHeld().with_memory(classify(-9), [], POD)
    assert "kubectl describe pod sft-worker-0" in render(asked.detail, "zh")


def test_child_killed_by_its_container_is_recognized(tmp_path: Path) -> None:
    """The SIGKILL is real, and the counters have the format of a control group (version 2)."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "vmstat").write_text("pgfault 1\noom_kill 5\n")
    (proc / "self" / "cgroup").write_text("0::/\n")
    events = "low 0\nhigh 0\nmax {0}\noom {0}\noom_kill {0}\noom_group_kill 0\n"
    (groups / "memory.events").write_text(events.format(0))
    watch = EndingWatch(proc, groups)
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None and child.stdin is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    (groups / "memory.events").write_text(events.format(1))
    ending = held().with_memory(classify(child.wait(), oom=watch.counts, seconds=1.0, now=0.0), [], POD)
    child.stdin.close()
    child.stdout.close()
    assert (ending.kind, ending.signal) == ("oom-killed", "SIGKILL")
    assert (
        "control group" in render(ending.detail)
        and "Rank 3" in render(ending.detail)
        and "OOMKilled" in render(ending.detail)
    )


def test_agent_remembers_the_memory_of_its_ranks(run: Any, tmp_path: Path) -> None:
    rings = make_folder(tmp_path)
    run.agent._probing = Probing(rings)
    probe = Probe(rings, {"RANK": "5"}, lambda: run.now)
    for size in (3.0, 1.0):
        run.wait(2)
        probe.step(resident_bytes=size * GIB)
    run.wait(2)
    run.agent.end(classify(-9), run.now)
    assert "Rank 5 used the most memory, up to 3.0 GiB." in render(run.agent.ending.detail)


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/job/step", {"job/memory.max": "4096", "job/step/memory.max": "1024"}, 1024),
        ("5:cpu:/x\n9:memory:/slurm/job", {"memory/slurm/job/memory.limit_in_bytes": "2048"}, 2048),
        ("0::/", {"memory.max": "512"}, 512),  # in a container
        ("0::/job", {}, None),
    ],
)
def test_smallest_limit_of_parent_groups_applies(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = memory_limit(tmp_path / "proc", tmp_path / "cgroup")
    assert found == (psutil.virtual_memory().total if limit is None else limit)
