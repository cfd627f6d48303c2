"""Faults that are inserted into generated logs. A fault consists of lines that the process at fault prints.

For each fault, this module contains the class of its cause (causes.json), the words that name the cause, and
the source of the format. The faults are not copied from the catalogue's pages, and a quarter of the faults
have no page (class ``other``). Most faults are tracebacks, which are rows of inserted_faults.json. The
exception of such a traceback comes from a library (``at``: file, function, call, exception), from the program
(``own``), or from the forward pass of the program (``forward``). The other faults are functions in this
module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from styles import Lines, Scene


@dataclass(frozen=True)
class Fault:
    name: str
    cause: str
    sign: str  #: words that name the cause; bars separate alternatives
    lines: Callable[[Scene], Lines]
    source: str  #: package, version, and file that defines the format
    code: int = 1  #: exit code of the process; negative for a signal
    others: str = "wait"  #: what other ranks do: wait (until a timeout), closed, alike, silent, or none
    when: str = "mid"  #: time of the fault: start, mid, save, or eval
    gpus: bool = True  #: True if the fault occurs only in a trainer that runs on GPUs
    job: Callable[[Scene], Lines] | None = None  #: lines of the scheduler or the kernel about the fault


def trace(s: Scene, raised: str, *calls: tuple[str, int, str, str]) -> Lines:
    """Return a traceback that contains the program's calls, followed by the library's calls."""
    own_calls = [
        (f"{s.home}/train.py", s.chance.randrange(200, 420), "<module>", "main()"),
        (f"{s.home}/train.py", s.chance.randrange(90, 199), "main", "trainer.train()"),
    ]
    lines = ["Traceback (most recent call last):"]
    for path, number, name, code in [*own_calls, *calls]:
        lines += [f'  File "{path}", line {number}, in {name}', f"    {code}"]
    return [*lines, *raised.split("\n")]


def lib(s: Scene, path: str) -> str:
    return f"/opt/venv/lib/python3.1{1 + s.total % 2}/site-packages/{path}"


def _forward(s: Scene) -> tuple[tuple[str, int, str, str], ...]:
    return (
        (lib(s, "torch/nn/modules/module.py"), 1775, "_call_impl", "return forward_call(*args, **kwargs)"),
        (
            f"{s.home}/model.py",
            s.chance.randrange(40, 400),
            "forward",
            "hidden = self.mlp(self.norm(hidden))",
        ),
    )


def _loop(s: Scene, code: str = "batch = next(batches)") -> tuple[tuple[str, int, str, str], ...]:
    return ((f"{s.home}/data.py", s.chance.randrange(40, 400), "__next__", code),)


def own(raised: str, code: str = "value = self.compute(batch)") -> Callable[[Scene], Lines]:
    return lambda s: trace(s, raised.format(step=s.step, n=s.chance.randrange(10, 9999)), *_loop(s, code))


def forward(raised: str) -> Callable[[Scene], Lines]:
    return lambda s: trace(s, raised, *_forward(s))


def at(path: str, name: str, code: str, raised: str) -> Callable[[Scene], Lines]:
    return lambda s: trace(s, raised, (lib(s, path), s.chance.randrange(50, 1900), name, code))


def _oom(s: Scene) -> Lines:
    total, tried = (
        s.chance.choice(["79.11 GiB", "39.39 GiB", "23.64 GiB"]),
        s.chance.choice(["2.32 GiB", "512.00 MiB", "20.00 MiB"]),
    )
    return trace(
        s,
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {s.chance.randrange(8)} has a total capacity"
        f" of {total} of which {s.chance.randrange(3, 900)}.{s.chance.randrange(10, 99)} MiB is free. Including non-PyTorch memory, this"
        " process has 38.80 GiB memory in use. Of the allocated memory 35.02 GiB is allocated by PyTorch, and 2.44 GiB is"
        " reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
        "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
        *_forward(s),
    )


def _old_oom(s: Scene) -> Lines:
    return trace(
        s,
        "RuntimeError: CUDA out of memory. Tried to allocate 1.53 GiB (GPU 0; 31.75 GiB total capacity; 28.81 GiB already"
        " allocated; 1.01 GiB free; 29.40 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting"
        " max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        *_forward(s),
    )


def _device_assert(s: Scene) -> Lines:
    block, rows = s.chance.randrange(400), []
    for thread in range(s.chance.randrange(4, 33)):
        rows.append(
            f"../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [{block},0,0], thread: [{thread},0,0]"
            " Assertion `srcIndex < srcSelectDimSize` failed."
        )
    return rows + trace(s, "RuntimeError: CUDA error: device-side assert triggered" + _ADVICE, *_forward(s))


_ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
    "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def _watchdog(s: Scene) -> Lines:
    """Return the lines from NCCL's watchdog, in the format of torch 2.6 (ProcessGroupNCCL.cpp)."""
    seq, size = s.chance.randrange(900, 90000), s.chance.choice([1, 16384, 52428800])
    rank, limit = s.chance.randrange(s.ranks), s.chance.choice([600000, 1800000])
    head = f"[rank{rank}]:[E{s.glog} ProcessGroupNCCL.cpp"
    return [
        f"{head}:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE,"
        f" NumelIn={size}, NumelOut={size}, Timeout(ms)={limit}) ran for {limit + 41} milliseconds before timing out.",
        f"{head}:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq}"
        f" PG status: last enqueued work: {seq + 3}, last completed work: {seq - 1}",
        f"{head}:681] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,"
        " subsequent GPU operations might run on corrupted/incomplete data.",
        f"{head}:695] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: [Rank {rank}]"
        f" Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={size},"
        f" NumelOut={size}, Timeout(ms)={limit}) ran for {limit + 41} milliseconds before timing out.",
    ]


def _nccl_remote(s: Scene) -> Lines:
    return trace(
        s,
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384,"
        " remote process exited or there was a network error, NCCL version 2.26.2\nncclRemoteError: A call failed possibly due to a"
        " network error or a remote process exiting prematurely.\nLast error:\nNET/IB: Got completion from peer 10.4.0.12<38193> with"
        " status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1) len=0 vendor err 129 (Recv) localGid fe80::1 remoteGids fe80::2 hca mlx5_3",
        (
            lib(s, "torch/distributed/distributed_c10d.py"),
            2806,
            "all_reduce",
            "work = group.allreduce([tensor], opts)",
        ),
    )


def _nccl_system(s: Scene) -> Lines:
    return [
        f"{s.host}:41021:41388 [3] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.4.0.9<52011> failed : Connection refused",
        *trace(
            s,
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2356,"
            " unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: System call (e.g."
            " socket, malloc) or external library call failed or device error. \nLast error:\nsocketStartConnect: Connect to"
            " 10.4.0.9<52011> failed : Connection refused",
            (
                lib(s, "torch/distributed/distributed_c10d.py"),
                4159,
                "barrier",
                "work = group.barrier(opts=opts)",
            ),
        ),
    ]


def _no_line(_: Scene) -> Lines:
    return []


def _step(s: Scene) -> str:
    return f"{s.chance.randrange(10**6, 10**7)}.0"


def _nan_lines(s: Scene) -> Lines:
    return [
        f"{{'loss': nan, 'grad_norm': nan, 'learning_rate': 1.2e-05, 'epoch': {1 + n / 100:.2f}}}"
        for n in range(1, s.chance.randrange(20, 60))
    ]


def _loss_scale(s: Scene) -> Lines:
    rows = []
    scale = 65536
    while scale >= 1:
        rows.append(
            f"[{s.iso},{s.chance.randrange(1000):03d}] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping"
            f" step. Attempted loss scale: {scale}, reducing to {max(scale // 2, 1)}"
        )
        scale //= 2
    return rows + at(
        "deepspeed/runtime/fp16/loss_scaler.py",
        "update_scale",
        "raise Exception(",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    )(s)


def _kernel(s: Scene) -> str:
    return f"[{s.chance.randrange(10**5, 10**6)}.{s.chance.randrange(10**5, 10**6)}]"


def _ray_actor(s: Scene) -> Lines:
    return trace(
        s,
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: WorkerDict\n\tactor_id:"
        " 4f0c4a1d9d4e0b1f6a1d2a9d01000000\n\tpid: 38211\n\tnamespace: 0b1f\n\tip: 10.4.0.7\nThe actor is dead because its worker process has died."
        " Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are"
        " some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is"
        " called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.",
        (lib(s, "ray/_private/worker.py"), 2822, "get", "values, debugger_breakpoint = worker.get_objects("),
    )


WRITTEN: dict[str, Callable[[Scene], Lines]] = {
    "cuda-oom": _oom,
    "cuda-oom-old": _old_oom,
    "device-assert": _device_assert,
    "nccl-timeout": _watchdog,
    "nccl-remote": _nccl_remote,
    "nccl-system": _nccl_system,
    "nccl-no-interface": lambda s: [
        f"{s.host}:3021:3021 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        *at(
            "torch/distributed/distributed_c10d.py",
            "barrier",
            "work = group.barrier(opts=opts)",
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: Internal check failed.\nLast error:\nBootstrap : no socket interface found",
        )(s),
    ],
    "cgroup-oom": _no_line,
    "kernel-oom": _no_line,
    "sigkill": _no_line,
    "sigsegv": lambda s: [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f3a4c5fe740 (most recent call first):",
        f'  File "{lib(s, "torch/utils/data/_utils/collate.py")}", line 141 in collate',
        f'  File "{s.home}/train.py", line 212 in main',
    ],
    "ray-oom": lambda s: trace(
        s,
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.4.0.7, ID: 8f1c) where the lease (actor ID: 4f0c, name=WorkerDict.__init__, pid=38211, memory used=211.45GB) was running was 486.12GB / 503.49GB (0.965491), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 11ad) because it was the most recently scheduled task; to see more information about memory usage on this node, use `ray logs raylet.out -ip 10.4.0.7`.",
        (lib(s, "ray/_private/worker.py"), 2822, "get", "values = worker.get_objects("),
    ),
    "ray-actor": _ray_actor,
    "shm-bus": lambda s: [
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        *at(
            "torch/utils/data/dataloader.py",
            "_try_get_data",
            "raise RuntimeError(",
            "RuntimeError: DataLoader worker (pid(s) 41207, 41208) exited unexpectedly",
        )(s),
    ],
    "time-limit": _no_line,
    "preempted": _no_line,
    "node-fail": _no_line,
    "nan-goes-on": _nan_lines,
    "nan-stops": lambda s: ["Loss is nan, stopping training", "{'loss_ce': tensor(nan, device='cuda:0')}"],
    "loss-scale": _loss_scale,
    "hydra": lambda s: [
        "Error executing job with overrides: ['trainer.max_steps=1000']",
        *at(
            "omegaconf/base.py",
            "_format_and_raise",
            "raise ex",
            "omegaconf.errors.ConfigAttributeError: Key 'warmup' is not in struct\n    full_key: optim.warmup\n    object_type=dict",
        )(s),
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ],
    "cmd": lambda s: ["/var/spool/slurmd/job812/slurm_script: line 41: torchrun: command not found"],
    "cpp": lambda s: [
        "terminate called after throwing an instance of 'std::out_of_range'",
        "  what():  vector::_M_range_check: __n (which is 512) >= this->size() (which is 512)",
        f"*** Process received signal ***\n[{s.host}:40211] Signal: Aborted (6)",
    ],
}
#: Lines of the scheduler or the kernel about a fault, by name.
JOBS: dict[str, Callable[[Scene], Lines]] = {
    "xid-79": lambda s: [
        f"{_kernel(s)} NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        f"{_kernel(s)} NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    ],
    "xid-94": lambda s: [
        f"{_kernel(s)} NVRM: Xid (PCI:0000:{s.chance.randrange(16, 99)}:00): 94, pid=40211, name=python, Contained: SM (0x1). RST: No, D-RST: No"
    ],
    "cgroup-oom": lambda s: [
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={_step(s)}. Some of the step tasks have been OOM Killed."
    ],
    "kernel-oom": lambda s: [
        f"{_kernel(s)} Out of memory: Killed process {s.chance.randrange(4000, 90000)} (python) total-vm:512034116kB, anon-rss:190211032kB, file-rss:2048kB, shmem-rss:0kB, UID:1000 pgtables:402112kB oom_score_adj:0"
    ],
    "time-limit": lambda s: [
        f"slurmstepd: error: *** STEP {_step(s)} ON {s.host} CANCELLED AT {s.now.strftime('%Y-%m-%dT%H:%M:%S')} DUE TO TIME LIMIT ***"
    ],
    "preempted": lambda s: [
        f"slurmstepd: error: *** JOB {s.chance.randrange(10**6)} ON {s.host} CANCELLED AT {s.now.strftime('%Y-%m-%dT%H:%M:%S')} DUE TO PREEMPTION ***"
    ],
    "node-fail": lambda s: [
        "srun: error: Node failure on node07",
        f"slurmstepd: error: *** STEP {_step(s)} ON {s.host} CANCELLED AT {s.now.strftime('%Y-%m-%dT%H:%M:%S')} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
    ],
}


def _fault(row: dict[str, Any]) -> Fault:
    makers = {"at": at, "own": own, "forward": forward}
    how = next((key for key in makers if key in row), "")
    if how:
        given = row.pop(how)
        lines = makers[how](*([given] if isinstance(given, str) else given))
    else:
        lines = WRITTEN[row["name"]]
    return Fault(lines=lines, job=JOBS.get(row["name"]), **row)


FAULTS = tuple(map(_fault, json.loads(Path(__file__).with_suffix(".json").read_text())))
