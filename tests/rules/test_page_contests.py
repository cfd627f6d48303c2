"""Where several pages fire in one log, the one that names the cause is the primary."""

from __future__ import annotations

import pytest

from stallwatch_rules.catalogue import load_catalogue
from stallwatch_rules.lines import LineReader
from stallwatch_rules.reading import RunReading

CATALOGUE = load_catalogue()
ELASTIC = "torch.distributed.elastic.multiprocessing.api"
REMOTE_ERROR = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely"
)
COMPLETION = "NET/IB : Got completion from peer 10.0.3.18<38901> with"

BARRIER = 'File "/opt/venv/torch/distributed/distributed_c10d.py", line 4820, in barrier'

CONTESTS = {
    "a full GPU at the first barrier is not the model's size": (
        "cuda-oom-before-model-load",
        [f"  {BARRIER}", "    work = group.barrier(opts=opts)", "RuntimeError: CUDA error: out of memory"],
    ),
    "the same words in a forward pass are the job's own": (
        "cuda-oom",
        [
            '  File "/opt/venv/torch/nn/modules/linear.py", line 134, in forward',
            "RuntimeError: CUDA error: out of memory",
        ],
    ),
    "NCCL that finds no GPU memory is an out-of-memory": (
        "cuda-oom",
        [
            "torch.distributed.DistBackendError: NCCL error in: /b/NCCLUtils.hpp:317, unhandled cuda error"
            " (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Failed to CUDA calloc 8388608 bytes",
        ],
    ),
    "host memory that cannot be pinned reads like a full GPU": (
        "pinned-memory-alloc-failed",
        [
            '  File "/opt/venv/deepspeed/accelerator/cuda_accelerator.py", line 217, in pin_memory',
            "    return tensor.pin_memory()",
            "RuntimeError: CUDA error: out of memory",
        ],
    ),
    "a communicator that fails because a rank did not come": (
        "hccl-socket-timeout",
        [
            "RuntimeError: HCCL function error: HcclCommInitRootInfo(numRanks, &rootInfo), error code is 9",
            "EI0006: [PID: 7] 2026-03-02-08:11:09.300.120 Getting socket times out. Reason: Remote Rank did"
            " not send the data in time.",
        ],
    ),
    "a communicator that fails because the device is taken": (
        "hccl-device-occupied",
        [
            "RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64",
            "EJ0001: 2026-03-02-08:11:09.300.120 Failed to initialize the HCCP process. Reason: Maybe the"
            " last training process is running.",
        ],
    ),
    "shared memory explains NCCL's system error": (
        "nccl-shm-no-space",
        [
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
            "Last error:",
            "Error while creating shared memory segment /dev/shm/nccl-Q2xUzA (size 33030528)",
        ],
    ),
    "a link that failed explains the ranks that lost each other": (
        "infiniband-link-down",
        [
            REMOTE_ERROR,
            "Last error:",
            f"{COMPLETION} status=12 opcode=0 len=0 vendor err 129",
        ],
    ),
    "a flushed work request only says that the peer has gone": (
        "nccl-remote-process-exited",
        [
            REMOTE_ERROR,
            "Last error:",
            f"{COMPLETION} error 5, opcode 0, len 0, vendor err 249",
        ],
    ),
    "a closed terminal explains the SIGTERM of the workers": (
        "sighup-terminal-closed",
        [
            f"WARNING:{ELASTIC}:Sending process 7408 closing signal SIGTERM",
            f"{ELASTIC}.SignalException: Process 7405 got signal: 1",
        ],
    ),
    "Ray's memory monitor explains the actor that died": (
        "ray-host-oom",
        [
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        ],
    ),
    "a usage error explains the launcher's summary": (
        "config-argparse-error",
        [
            "train.py: error: unrecognized arguments: --local-rank=1",
            f"ERROR:{ELASTIC}:failed (exitcode: 2) local_rank: 0 (pid: 343) of binary: /usr/bin/python3",
        ],
    ),
}


@pytest.mark.parametrize(("expected", "log"), CONTESTS.values(), ids=CONTESTS.keys())
def test_the_cause_wins(expected: str, log: list[str]) -> None:
    reader = LineReader("train.log")
    reading = RunReading(CATALOGUE)
    reading.feed(reader.feed("".join(f"{line}\n" for line in log).encode()) + reader.finish())
    primary = reading.diagnose().primary
    assert primary is not None
    assert primary.rule == expected
