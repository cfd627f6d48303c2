"""SIGKILLs and the memory use at that time: counted by the kernel, or from outside."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from smallruns import FAILED, killed_by

from stallwatch_rules.endings import Ending, MemoryUse
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import lines_of
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading
from stallwatch_rules.records import Diagnosis

GIB = 2**30
NAME = "NameError: name 'logger' is not defined\n"
STEPS = "".join(f"[rank0]: step {step}/60 loss {2 / step:.4f}\n" for step in range(1, 21))
KILLED = (
    "E1121 08:41:10.745000 26924 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)"
    " local_rank: 1 (pid: 27127) of binary: /opt/venv/bin/python\n"
)
REFUSED = (
    "[rank1]: RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes\n"
)
LIMIT = "slurmstepd: error: *** JOB 48213 ON gpu017 CANCELLED AT 2026-05-02T09:20:21 DUE TO TIME LIMIT ***\n"
LOW = MemoryUse(counted=False, held=12 * GIB, limit=128 * GIB, ranks={0: 5 * GIB, 1: 6 * GIB})
HIGH = MemoryUse(counted=False, held=125 * GIB, limit=128 * GIB)
OUTSIDE, OOM = "process-killed-from-outside", "host-oom-sigkill"


def ended(known: Catalogue, text: str, memory: MemoryUse | None, *, ending: Ending = FAILED) -> Diagnosis:
    reading = RunReading(known)
    reading.feed(lines_of(text))
    return rendered(reading.diagnose(ending=ending, memory=memory))


@pytest.mark.parametrize(
    ("memory", "rule", "least", "most"),
    [
        (None, OOM, 0.7, 0.8),
        (LOW, OUTSIDE, 0.75, 0.9),
        (HIGH, OOM, 0.8, 0.9),
        (MemoryUse(counted=True, held=12 * GIB, limit=128 * GIB), OOM, 0.8, 0.9),
        (MemoryUse(counted=None, held=12 * GIB, limit=128 * GIB), OOM, 0.3, 0.5),
        (MemoryUse(counted=False, held=100 * GIB, limit=128 * GIB), OOM, 0.7, 0.8),
        (MemoryUse(counted=False), OOM, 0.7, 0.8),
        (MemoryUse(counted=False, ranks={0: 60 * GIB, 1: 60 * GIB}, limit=128 * GIB), OOM, 0.8, 0.9),
    ],
)
def test_memory_determines_the_cause_of_a_kill(
    catalogue: Catalogue, memory: MemoryUse | None, rule: str, least: float, most: float
) -> None:
    found = ended(catalogue, STEPS + KILLED, memory)
    assert found.primary is not None and found.primary.rule == rule
    assert least <= found.primary.confidence <= most
    other = {OUTSIDE, OOM} - {rule}
    assert not other & {finding.rule for finding in found.findings}


def test_line_about_the_kill_remains_the_evidence(catalogue: Catalogue) -> None:
    found = ended(catalogue, STEPS + KILLED, LOW)
    assert found.primary is not None and "exitcode: -9" in found.primary.evidence[0]
    given = next(finding for finding in found.findings if finding.rule == OUTSIDE)
    assert "12.0 GiB of memory, and the limit is 128.0 GiB" in given.note


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (STEPS + REFUSED + KILLED, OOM),  # the log itself reports that memory ran out
        (STEPS + KILLED + LIMIT, "slurm-time-limit"),  # who sent the signal is known
        (STEPS + "[rank9]: step 21/60 loss 0.1\n" + KILLED, OOM),  # another node's lines
    ],
)
def test_better_cause_in_the_log_is_kept(catalogue: Catalogue, text: str, rule: str) -> None:
    found = ended(catalogue, text, LOW)
    assert found.primary is not None and found.primary.rule == rule


DEEPSPEED = (
    "[2026-03-11 04:22:10,118] [ERROR] [launch.py:325:sigkill_handler] [] exits with return code = -9\n"
)
NODES = "[2026-03-11 04:00:10,118] [INFO] [launch.py:158:main] nnodes={}, num_local_procs=2, node_rank=0\n"
MPIRUN = "mpirun noticed that process rank {} with PID 0 on node {} exited on signal 9 (Killed).\n"
SUMMARY = "  rank      : {} (local_rank: 1)\n  exitcode  : -9 (pid: 27127)\n"
UNPROBED = MemoryUse(counted=False, held=12 * GIB, limit=128 * GIB)


@pytest.mark.parametrize(
    ("text", "memory", "rule", "least", "most"),
    [
        ("worker-1: " + DEEPSPEED, LOW, OOM, 0.3, 0.5),
        (NODES.format(2) + DEEPSPEED, UNPROBED, OOM, 0.3, 0.5),
        (NODES.format(1) + DEEPSPEED, UNPROBED, OUTSIDE, 0.75, 0.9),
        (MPIRUN.format(9, "node2"), LOW, OOM, 0.7, 0.8),  # of that node nothing is known
        (MPIRUN.format(9, "node2"), UNPROBED, OOM, 0.3, 0.5),
        (MPIRUN.format(1, "node1"), LOW, OUTSIDE, 0.75, 0.9),
        (KILLED, UNPROBED, OOM, 0.3, 0.5),
        (KILLED + SUMMARY.format(1), LOW, OUTSIDE, 0.75, 0.9),
        (KILLED + SUMMARY.format(9), LOW, OOM, 0.7, 0.8),  # the local rank 1 of another node
    ],
)
def test_memory_is_ignored_for_a_kill_on_another_node(
    catalogue: Catalogue, text: str, memory: MemoryUse, rule: str, least: float, most: float
) -> None:
    """If the process may have run here, a lack of memory is less certain; no other finding changes."""
    found = ended(catalogue, STEPS.replace("[rank0]: ", "") + text, memory)
    assert found.primary is not None and found.primary.rule == rule
    assert least <= found.primary.confidence <= most


SPAWN = "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal "


@pytest.mark.parametrize(("codes", "killed"), [({1: -9, 0: -15}, 1), ({1: None, 0: -15}, 1), ({}, None)])
def test_observed_exit_codes_name_the_rank(
    catalogue: Catalogue, codes: dict[int, int | None], killed: int | None
) -> None:
    reading = RunReading(catalogue)
    reading.feed(lines_of(STEPS.replace("[rank0]: ", "") + SPAWN + "SIGKILL"))
    found = rendered(reading.diagnose(ending=replace(FAILED, codes=codes), memory=LOW))
    assert found.primary is not None and found.primary.rank == killed
    assert (found.primary.rule == OUTSIDE) == (codes.get(1) == -9)  # killed on this machine


def test_rank_named_by_the_launcher_has_precedence(catalogue: Catalogue) -> None:
    reading = RunReading(catalogue)
    summary = "  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 27127)\n"
    reading.feed(lines_of(STEPS.replace("[rank0]: ", "") + SPAWN + "SIGSEGV\n" + summary))
    found = rendered(reading.diagnose(ending=replace(FAILED, codes={1: -11})))
    assert found.primary is not None and found.primary.rank == 5


def test_kill_counted_by_the_kernel_is_most_certain(catalogue: Catalogue) -> None:
    given = Ending("oom-killed", 137, "SIGKILL")
    sure = []
    for memory in (None, MemoryUse(counted=True), MemoryUse(counted=True, held=GIB, limit=128 * GIB)):
        found = ended(catalogue, STEPS + KILLED, memory, ending=given)
        assert found.primary is not None and found.primary.rule == OOM
        sure.append(found.primary.confidence)
        note = next(finding.note for finding in found.findings if finding.rule == OOM)
        assert "GiB" not in note and (memory is None or "the kernel's count" in note)
    assert set(sure) == {0.95}
    perhaps = ended(catalogue, STEPS + KILLED, MemoryUse(counted=True)).primary
    assert perhaps is not None and perhaps.confidence < 0.95


def test_memory_reported_by_ranks_is_mentioned(catalogue: Catalogue) -> None:
    memory = MemoryUse(ranks={0: 60 * GIB, 1: 60 * GIB}, limit=128 * GIB)
    found = ended(catalogue, STEPS + KILLED, memory)
    given = next(finding for finding in found.findings if finding.rule == OOM)
    assert "120.0 GiB of memory, and the limit is 128.0 GiB" in given.note


@pytest.mark.parametrize(("memory", "rule"), [(None, OOM), (LOW, OUTSIDE), (HIGH, OOM)])
def test_killed_command_is_diagnosed(catalogue: Catalogue, memory: MemoryUse | None, rule: str) -> None:
    found = ended(catalogue, STEPS, memory, ending=killed_by("SIGKILL"))
    assert found.primary is not None and found.primary.rule == rule


LAUNCHED = (
    "[2026-03-11 04:22:10,118] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', 'train.py']"
    " exits with return code = -6\n"
)
ABORT = "terminate called without an active exception\n"
DONE = STEPS + "{'train_runtime': 12.1, 'train_samples_per_second': 1.2, 'train_loss': 1.2, 'epoch': 1.0}\n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (DONE + ABORT + LAUNCHED, "degraded"),
        (STEPS + ABORT + LAUNCHED, "failed"),
        (DONE + REFUSED + ABORT + LAUNCHED, "failed"),  # something else failed after all
    ],
)
def test_abort_after_the_run_is_not_a_failure(catalogue: Catalogue, text: str, verdict: str) -> None:
    found = ended(catalogue, text, None)
    assert found.verdict == verdict and found.primary is not None
    assert (found.primary.rule == "process-sigabrt") is (REFUSED not in text)


SAID = (
    "  exitcode  : -9 (pid: 27127)\n",
    "  traceback : Signal 9 (SIGKILL) received by PID 27127\n",
    "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 137.\n",
)
PROOF = "slurmstepd: error: Detected 1 oom_kill event in StepId=4411.0. Some of the step tasks have been OOM."


def test_proof_of_a_kill_is_not_weakened_by_other_lines(catalogue: Catalogue) -> None:
    further = "".join(KILLED.replace("27127", str(pid)) for pid in range(5))
    for text in (PROOF + "\n", KILLED + "".join(SAID) + further + PROOF + "\n" + SAID[0]):
        primary = ended(catalogue, STEPS + text, None).primary
        assert primary is not None and primary.rule == OOM and primary.confidence > 0.9
        assert any("Detected 1 oom_kill event" in line for line in primary.evidence)


def test_exception_before_an_unexplained_kill_is_the_cause(
    catalogue: Catalogue,
) -> None:
    error = (
        'Traceback (most recent call last):\n  File "/srv/train.py", line 5, in <module>\n    log()\n' + NAME
    )
    failed = ended(catalogue, STEPS + error + KILLED, None)
    assert failed.primary is None and failed.unknown[0].exception == "NameError"
    afterwards = ended(catalogue, STEPS + KILLED + error, None)
    assert afterwards.primary is not None and afterwards.primary.rule == OOM
    found = ended(catalogue, STEPS + error + KILLED + REFUSED, None)
    assert found.primary is not None and found.primary.rule == OOM


def test_last_of_several_killed_starts_is_reported(catalogue: Catalogue) -> None:
    run = "".join(f"step {step} loss {2 / step:.4f}\n" for step in range(1, 41))
    found = ended(catalogue, run + "Killed\n" + run.replace("4", "5") * 2 + "Killed\n", None)
    assert found.primary is not None and found.primary.line == 122


def test_kill_after_a_full_bar_is_excused_only_for_a_training(catalogue: Catalogue) -> None:
    killed = "./main.sh: line 39: 1095 Killed                  python serve.py\n"
    bar = "{:4.0%}|##        | {}/12 [00:09<00:01,  1.00it/s{}]\n"

    def after(loss: str) -> Diagnosis:
        reading = RunReading(catalogue)
        reading.feed(lines_of("".join(bar.format(n / 12, n, loss) for n in range(1, 13)) + killed))
        return reading.diagnose()

    served = after("")
    assert served.primary is not None and served.primary.rule == OOM
    assert after(", loss=0.5").verdict == "finished"


def test_heading_of_a_traceback_is_explained_by_its_exception(catalogue: Catalogue) -> None:
    """SGLang (0.5, managers/scheduler.py) logs the traceback of its scheduler behind a heading of its own."""
    calls = '  File "/srv/sglang/scheduler.py", line 2244, in run\n    scheduler.loop()\n'
    heading = "[2026-05-02 10:00:34] Scheduler hit an exception: Traceback (most recent call last):\n"
    failed = ended(catalogue, f"{STEPS}{heading}{calls}RuntimeError: CUDA error: invalid argument\n", None)
    assert failed.primary is None and failed.unknown[0].message == "CUDA error: invalid argument"
    alone = ended(catalogue, f"{STEPS}[2026-05-02 10:00:34] Scheduler hit an exception: unknown\n", None)
    assert alone.primary is not None and alone.primary.rule == "vllm-engine-dead"


def test_traceback_in_a_message_of_ray_is_its_reason(catalogue: Catalogue) -> None:
    """Ray (2.55, _private/function_manager.py) puts why an actor was not imported into its message."""
    calls = '  File "/srv/ray/function_manager.py", line 608, in method\n    raise RuntimeError(\n'
    text = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
        f"Traceback (most recent call last):\n{calls}"
        "RuntimeError: The actor with name Worker failed to import on the worker. This may be because needed"
        " library dependencies are not installed in the worker environment:\n\n"
        'Traceback (most recent call last):\n  File "/srv/actor.py", line 3, in <module>\n    import odd\n'
        "OddError: my library is of another version\n"
    )
    failed = ended(catalogue, text, None)
    assert [item.exception for item in failed.unknown] == ["OddError"]
