"""If several pages fire in one log, the primary finding is the one that names the cause."""

from __future__ import annotations

import pytest

from stallwatch_rules.lines.reader import LineReader
from stallwatch_rules.locale import rendered
from stallwatch_rules.matching.matcher import Matcher
from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.reading import RunReading

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
    "a step that Slurm ends after a kill did not ask for it": (
        "host-oom-sigkill",
        [
            f"E0302 09:41:15.100000 4100 {ELASTIC}:869] failed (exitcode: -9) local_rank: 2 (pid: 4112)",
            "srun: error: gpu01: task 0: Exited with exit code 1",
            "slurmstepd: error: *** STEP 204.0 ON gpu01 CANCELLED AT 2026-03-02T09:41:20 ***",
        ],
    ),
    "a pipe whose other end is gone does not hide a collective that timed out": (
        "nccl-collective-timeout",
        [
            "Traceback (most recent call last):",
            '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 378, in _send',
            "    n = write(self._handle, buf)",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "[rank1]:[E302 09:41:01.318203100 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective"
            " operation timeout: WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=8, NumelOut=8,"
            " Timeout(ms)=600000) ran for 600030 milliseconds before timing out.",
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
    "a step that Slurm cancels because a task failed": (
        "nccl-collective-timeout",
        [
            "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=98, OpType=BROADCAST,"
            " NumelIn=38, NumelOut=38, Timeout(ms)=1800000) ran for 1800091 milliseconds before timing out.",
            "[Rank 4] srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        ],
    ),
    "a healthy step that Slurm cancels": (
        "slurm-cancelled",
        [
            "slurmstepd: error: *** STEP 48213.0 ON gpu017 CANCELLED AT 2026-11-20T18:00:21 ***",
            "RuntimeError: [/b/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:33211",
        ],
    ),
    "a step that srun cancels because a task failed, whatever its log says": (
        "slurm-task-failed",
        [
            "srun: error: gpu08: task 5: Exited with exit code 1",
            "srun: launch/slurm: _step_signal: Terminating StepId=48213.0",
            "slurmstepd: error: *** STEP 48213.0 ON gpu08 CANCELLED AT 2026-11-20T18:00:21 ***",
            "srun: error: gpu09: tasks 8-15: Killed",
        ],
    ),
    "tasks that were cancelled did not fail": (
        "slurm-cancelled",
        [
            "srun: error: gpu08: task 5: Exited with exit code 143",
            "slurmstepd: error: *** STEP 48213.0 ON gpu08 CANCELLED AT 2026-11-20T18:00:21 ***",
            "srun: error: gpu09: task 8: Exited with exit code 1",
        ],
    ),
    "a step whose time is up is cancelled, too": (
        "slurm-time-limit",
        [
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            "slurmstepd: error: *** STEP 48213.0 ON gpu017 CANCELLED AT 2026-11-20T18:00:21"
            " DUE TO TIME LIMIT ***",
        ],
    ),
    "a rendezvous that is lost because the other node died": (
        "nccl-remote-process-exited",
        [
            f"[rank8]: {REMOTE_ERROR}",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d"
            " store has failed. See inner exception for details.",
        ],
    ),
    "a thrown timeout whose words name their rank": (
        "nccl-collective-timeout",
        [
            "terminate called after throwing an instance of 'c10::DistBackendError'",
            "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 6] Process group watchdog thread terminated with"
            " exception: [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=46,"
            " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds",
        ],
    ),
    "an illegal access that NCCL is the first to meet": (
        "cuda-illegal-memory-access",
        [
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Cuda failure 700 'an illegal memory access was encountered'",
        ],
    ),
    "a batch that lies on the GPU, which the pin memory thread is given": (
        "pin-memory-of-gpu-tensor",
        [
            "RuntimeError: Caught RuntimeError in pin memory thread for device 0.",
            "Original Traceback (most recent call last):",
            '  File "/opt/env/site-packages/torch/utils/data/_utils/pin_memory.py", line 57, in pin_memory',
            "    return data.pin_memory(device)",
            "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned",
        ],
    ),
    "host memory that reads as if the GPU's were gone": (
        "pinned-memory-alloc-failed",
        [
            "Traceback (most recent call last):",
            '  File "/opt/env/lib/python3.11/site-packages/torch/storage.py", line 231, in pin_memory',
            "    cast(Storage, self)).pin_memory(device)",
            "RuntimeError: CUDA error: out of memory",
        ],
    ),
    "a second gathering of a parameter in flight": (
        "zero3-inflight-params",
        [
            "Invalidate trace cache @ step 812: expected module 0, but got module 9",
            "RuntimeError: {'id': 52, 'status': 'INFLIGHT', 'numel': 0, 'ds_numel': 4096, 'shape': (0,),"
            " 'ds_shape': (4096,), 'requires_grad': True} already in registry",
        ],
    ),
    "a staging folder that another rank renamed while this one wrote into it": (
        "checkpoint-rename-race",
        [
            "Traceback (most recent call last):",
            '  File "/env/site-packages/transformers/trainer.py", line 2401, in _save_checkpoint',
            "    self.state.save_to_json(os.path.join(staging_output_dir, TRAINER_STATE_NAME))",
            '  File "/env/site-packages/transformers/trainer_callback.py", line 114, in save_to_json',
            '    with open(json_path, "w", encoding="utf-8") as f:',
            "FileNotFoundError: [Errno 2] No such file or directory: 'tmp-checkpoint-20/trainer_state.json'",
        ],
    ),
    "a file of the staging folder that another rank removed": (
        "checkpoint-rename-race",
        [
            "Traceback (most recent call last):",
            '  File "/env/site-packages/transformers/trainer.py", line 2555, in _save_checkpoint',
            "    shutil.rmtree(staging_output_dir)",
            '  File "/usr/lib/python3.10/shutil.py", line 678, in _rmtree_safe_fd',
            "    os.unlink(entry.name, dir_fd=topfd)",
            "FileNotFoundError: [Errno 2] No such file or directory: 'rng_state_8.pth'",
        ],
    ),
    "a disk that is full where Ray unpacks a worker's environment": (
        "disk-full-tmp",
        [
            "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
            "Could not create the actor because its associated runtime env failed to be created.",
            "OSError: [Errno 28] No space left on device: '/tmp/ray/session_latest/runtime_resources'",
        ],
    ),
    "an abort after the driver reset an AMD GPU": (
        "rocm-gpu-hang",
        [
            "HW Exception by GPU node-3 (Agent handle: 0x1c2b3a40) reason :GPU Hang",
            "Aborted (core dumped)",
        ],
    ),
}


@pytest.mark.parametrize(("expected", "log"), CONTESTS.values(), ids=CONTESTS.keys())
def test_cause_is_primary_among_several_pages(
    expected: str, log: list[str], catalogue: Catalogue, matcher: Matcher
) -> None:
    reader = LineReader("train.log")
    reading = RunReading(catalogue, matcher)
    reading.feed(reader.feed("".join(f"{line}\n" for line in log).encode()) + reader.finish())
    primary = rendered(reading.diagnose()).primary
    assert primary is not None
    assert primary.rule == expected


def test_exception_before_a_cancelled_step_is_the_failure(catalogue: Catalogue, matcher: Matcher) -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 11, in main\n'
        "    frob(cfg)\n"
        "ValueError: frob factor 3 is odd\n"
        "srun: error: gpu01: task 0: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 204.0 ON gpu01 CANCELLED AT 2026-02-13T16:38:01 ***\n"
    )
    reader = LineReader("train.log")
    reading = RunReading(catalogue, matcher)
    reading.feed(reader.feed(log.encode()) + reader.finish())
    diagnosis = rendered(reading.diagnose())
    assert diagnosis.verdict == "unknown-failure"
    assert [item.exception for item in diagnosis.unknown] == ["ValueError"]
