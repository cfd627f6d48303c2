"""Generate logs of training runs. The ID of a log determines its style, launcher, ranks, noise, and fault.

    python bench/cases/generate.py ID          # print the log with this ID

The ID of a log seeds its random numbers, so the repository stores only the IDs and hashes of the logs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from random import Random

from inserted_faults import FAULTS, Fault
from styles import STYLES, Lines, Scene

VARIANTS = 3  #: number of logs for each fault
GPU_LAUNCHERS = ("none", "torchrun", "torchrun-tee", "deepspeed", "srun", "srun-labelled", "accelerate")
OTHER_STYLES = ("sb3", "keras", "columns", "epochs")  #: styles of programs that usually have one process


@dataclass(frozen=True)
class Log:
    """A generated log and its correct answer."""

    text: str
    cause: str  #: class of the cause; empty if nothing is wrong
    sign: str
    exit_code: int
    rank: int | None
    ranks: int
    source: str


# ---------------------------------------------------------------- noise: lines that do not show a failure

NOISE: tuple[tuple[str, ...], ...] = (
    (
        "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:87: UserWarning: None of the inputs have requires_grad=True. Gradients will be None",
        "  warnings.warn(",
    ),
    ("Failed to load the fused layer norm kernel, falling back to the eager implementation",),
    (
        "W0302 09:14:07.101000 4021 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1 in default",
    ),
    (
        "wandb: WARNING Saving files without folders. If you want to preserve subdirectories pass base_path to wandb.save",
    ),
    (
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid deadlocks...",
    ),
    (
        "2026-03-02 09:14:07.112: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered",
    ),
    (
        "Some weights of LlamaForSequenceClassification were not initialized from the model checkpoint and are newly initialized: ['score.weight']",
    ),
    (
        "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.",
    ),
    (
        "node01:4021:4021 [0] NCCL INFO Bootstrap : Using eth0:10.4.0.3<0>",
        "node01:4021:4021 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
        "node01:4021:4188 [0] NCCL INFO comm 0x55d1 rank 0 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE",
    ),
    ("WARNING: sample 48213 has 9021 tokens, truncated to 8192",),
    ("Skipping malformed record at line 1812: Expecting ',' delimiter: line 1 column 88 (char 87)",),
    (
        "retrying request to /v1/score after ConnectTimeout (attempt 2 of 5)",
        "request succeeded after 2 attempts",
    ),
    ("[INFO] error rate of the validator: 0.0031, timeouts: 0, failed: 0",),
    ("WARNING:root:NaN or Inf found in input tensor.",),
    ("gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768.0",),
    (
        "Token indices sequence length is longer than the specified maximum sequence length for this model (5123 > 4096). Running this sequence through the model will result in indexing errors",
    ),
)


def _caught(s: Scene) -> Lines:
    """Return the log lines, including the traceback, of an exception that the program handled."""
    return [
        f"{s.iso},{s.chance.randrange(1000):03d} - data - ERROR - could not decode sample {s.chance.randrange(10**6)}, skipping",
        "Traceback (most recent call last):",
        f'  File "{s.home}/data.py", line {s.chance.randrange(40, 200)}, in read',
        "    image = Image.open(stream).convert('RGB')",
        "OSError: image file is truncated (12 bytes not processed)",
    ]


def _teardown(s: Scene) -> Lines:
    """Return the lines that a process prints while it shuts down."""
    return list(
        s.chance.choice(
            [
                (
                    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f1c8c0d3a60>",
                    "Traceback (most recent call last):",
                    '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1477, in __del__',
                    "    self._shutdown_workers()",
                    "AttributeError: 'NoneType' object has no attribute 'join'",
                ),
                (
                    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 12 leaked semaphore objects to clean up at shutdown",
                    "  warnings.warn('resource_tracker: There appear to be %d '",
                ),
                (
                    "wandb: ",
                    "wandb: You can sync this run to the cloud by running:",
                    "wandb: wandb sync wandb/offline-run-20260302_091407-k2s1",
                    "wandb: Find logs at: wandb/offline-run-20260302_091407-k2s1/logs",
                ),
                (
                    "[rank0]:[W302 09:14:07.101 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.",
                ),
                (
                    "Exception in thread Thread-3 (_pin_memory_loop):",
                    "Traceback (most recent call last):",
                    '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 399, in _recv',
                    "    chunk = read(handle, remaining)",
                    "ConnectionResetError: [Errno 104] Connection reset by peer",
                ),
                (
                    "Error in atexit._run_exitfuncs:",
                    "Traceback (most recent call last):",
                    '  File "/usr/lib/python3.11/logging/__init__.py", line 2238, in shutdown',
                    "    h.flush()",
                    "ValueError: I/O operation on closed file.",
                ),
            ]
        )
    )


# ---------------------------------------------------------------- the run, line by line


class Writer:
    """Collects a log's lines with their ranks. The `text` method adds the launcher's prefixes."""

    def __init__(self, s: Scene) -> None:
        self.s, self.lines = s, list[tuple[int | None, str, bool]]()
        self.style = STYLES[s.style]

    def add(self, lines: Lines, rank: int | None = 0, *, uncaught: bool = False) -> None:
        """Add lines of one rank or of no rank. Set `uncaught` for the traceback of an unhandled exception."""
        raised = False
        for line in (line for text in lines for line in text.split("\n")):
            raised = raised or (uncaught and line.startswith("Traceback (most"))
            self.lines.append((rank, line, raised))

    def start(self) -> None:
        chance = self.s.chance
        for noise in chance.sample(NOISE, chance.randrange(1, 5)):
            self.add(list(noise))
        self.add(self.style.start(self.s))

    def steps(self, count: int, every: int = 1) -> None:
        """Add `count` progress lines, with evaluations, saves, and noise between them."""
        s = self.s
        evaluated = max(count // s.chance.choice([2, 3, 5]), 4)
        for number in range(1, count + 1):
            s.step = min(s.step + every, s.total)
            s.wait(s.pace * every)
            self.add(self.style.step(s))
            if number % evaluated == 0:
                s.wait(30)
                self.add(self.style.evaluate(s))
                self.add(self.style.save(s))
            if s.chance.random() < 0.01:
                self.add(list(s.chance.choice(NOISE)))

    def finish(self) -> None:
        self.s.step = self.s.total
        self.add(self.style.step(self.s))
        self.add(self.style.save(self.s))
        self.add(self.style.end(self.s))

    def text(self, launcher: str, code: int) -> str:
        if self.style.ray:
            lines = [
                f"(TaskRunner pid=38120) {line}"
                if rank == 0
                else line
                if rank is None
                else f"(WorkerDict pid={38200 + rank}) {line}"
                for rank, line, _ in self.lines
            ]
        elif launcher == "torchrun-tee":
            lines = [line if rank is None else f"[default{rank}]:{line}" for rank, line, _ in self.lines]
        elif launcher == "srun-labelled":
            lines = [line if rank is None else f"{rank}: {line}" for rank, line, _ in self.lines]
        elif launcher in ("torchrun", "deepspeed", "accelerate", "srun") and self.s.ranks > 1:
            # In torch 2.4 and later, a rank prefixes the traceback of an unhandled exception.
            lines = [
                f"[rank{rank}]: {line}" if raised and rank is not None else line
                for rank, line, raised in self.lines
            ]
        else:
            lines = [line for _, line, _ in self.lines]
        return "\n".join(lines) + "\n"


def _scene(chance: Random, gpus: bool) -> tuple[Scene, str]:
    styles = [name for name in STYLES if not gpus or name not in OTHER_STYLES]
    style = chance.choice(styles)
    if style in (*OTHER_STYLES, "maxtext"):
        return Scene.of(chance, style, 1), "none"
    launcher = "none" if STYLES[style].ray else chance.choice(GPU_LAUNCHERS)
    ranks = 8 if STYLES[style].ray else 1 if launcher == "none" else chance.choice([2, 4, 8, 8, 16, 64])
    return Scene.of(chance, style, ranks), launcher


def _others(w: Writer, fault: Fault, odd: int) -> None:
    """Add the lines that the other ranks print after the fault."""
    s = w.s
    if s.ranks == 1 or fault.others in ("silent", "none"):
        return
    some = sorted(s.chance.sample([index for index in range(s.ranks) if index != odd], min(s.ranks - 1, 3)))
    if fault.others == "alike":
        for rank in some:
            w.add(fault.lines(s), rank, uncaught=True)
    elif fault.others == "closed" or s.chance.random() < 0.4:
        for rank in some:
            w.add(
                [
                    "Traceback (most recent call last):",
                    f'  File "{s.home}/train.py", line 212, in main',
                    "    loss.backward()",
                    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank "
                    f"{rank}. Original reason for failure was: NCCL error: remote process exited or there was a network error",
                ],
                rank,
                uncaught=True,
            )
    elif s.chance.random() < 0.6:
        seq = s.chance.randrange(900, 90000)
        s.wait(600)
        for rank in some:
            w.add(
                [
                    f"[rank{rank}]:[E{s.glog} ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout:"
                    f" WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=16384, NumelOut=16384, Timeout(ms)=600000) ran for 600029"
                    " milliseconds before timing out."
                ],
                rank,
            )


def _launcher(w: Writer, launcher: str, fault: Fault, odd: int) -> None:
    """Add the launcher's summary of the failure."""
    s, code, pid = w.s, fault.code, w.s.chance.randrange(4000, 90000)
    if code == 0 or fault.others == "none":
        return
    how = {
        -9: "Signal 9 (SIGKILL) received by PID ",
        -11: "Signal 11 (SIGSEGV) received by PID ",
        -6: "Signal 6 (SIGABRT) received by PID ",
        -15: "Signal 15 (SIGTERM) received by PID ",
    }
    if launcher.startswith("torchrun"):
        w.add(
            [
                f"W{s.glog} {pid - 9} torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pid + 3} closing signal SIGTERM",
                f"E{s.glog} {pid - 9} torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {code}) local_rank: {odd % 8} (pid: {pid}) of binary: /opt/venv/bin/python",
                "Traceback (most recent call last):",
                '  File "/opt/venv/bin/torchrun", line 8, in <module>',
                "    sys.exit(main())",
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
                "=" * 60,
                "train.py FAILED",
                "-" * 60,
                "Failures:",
                "  <NO_OTHER_FAILURES>",
                "-" * 60,
                "Root Cause (first observed failure):",
                "[0]:",
                f"  time      : {s.now.strftime('%Y-%m-%d_%H:%M:%S')}",
                f"  host      : {s.host}",
                f"  rank      : {odd} (local_rank: {odd % 8})",
                f"  exitcode  : {code} (pid: {pid})",
                "  error_file: <N/A>",
                f"  traceback : {how[code] + str(pid) if code in how else 'To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html'}",
                "=" * 60,
            ],
            None,
        )
    elif launcher == "deepspeed":
        killed = [
            f"[{s.iso},{s.chance.randrange(1000):03d}] [INFO] [launch.py:319:sigkill_handler] Killing subprocess {pid + n}"
            for n in range(min(s.ranks, 4))
        ]
        w.add(
            [
                *killed,
                f"[{s.iso},{s.chance.randrange(1000):03d}] [ERROR] [launch.py:325:sigkill_handler] ['/opt/venv/bin/python', '-u', 'train.py', '--local_rank=0'] exits with return code = {code}",
            ],
            None,
        )
    elif launcher.startswith("srun"):
        signals = {
            -9: "Killed",
            -11: "Segmentation fault (core dumped)",
            -6: "Aborted (core dumped)",
            -15: "Terminated",
        }
        w.add(
            [
                f"srun: error: {s.host}: task {odd}: {signals.get(code) or f'Exited with exit code {code}'}",
                f"srun: Terminating StepId={s.chance.randrange(10**6, 10**7)}.0",
            ],
            None,
        )
    elif launcher == "accelerate":
        w.add(
            [
                "Traceback (most recent call last):",
                '  File "/opt/venv/bin/accelerate", line 8, in <module>',
                "    sys.exit(main())",
                '  File "/opt/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1190, in launch_command',
                "    deepspeed_launcher(args)",
                f"subprocess.CalledProcessError: Command '['/opt/venv/bin/python', '-u', 'train.py']' returned non-zero exit status {abs(code)}.",
            ],
            None,
        )
    elif code in (-9, -11, -6) and (launcher == "none" or s.ranks == 1) and not fault.job:
        word = {
            -9: "Killed",
            -11: "Segmentation fault      (core dumped)",
            -6: "Aborted                 (core dumped)",
        }[code]
        w.add([f"/var/spool/slurmd/job{pid}/slurm_script: line 38: {pid} {word} python train.py"], None)


def failing(name: str, fault: Fault) -> Log:
    """Generate the log of a run that fails with the given fault."""
    chance = Random(name)
    s, launcher = _scene(chance, fault.gpus)
    if s.ranks == 1 and fault.cause in (
        "rendezvous",
        "collective-timeout",
        "network-fabric",
        "ranks-differ",
        "ddp-unused-parameters",
    ):
        s.style, s.ranks, launcher = (
            chance.choice(["trainer", "megatron", "logger"]),
            8,
            chance.choice(["torchrun", "srun", "deepspeed"]),
        )
    if fault.code < 0 and STYLES[s.style].ray:  # Ray would print additional lines
        s.style = "trainer"
    w = Writer(s)
    odd = chance.randrange(s.ranks)
    w.start()
    if fault.when != "start":
        w.steps(chance.randrange(15, 160), chance.choice([1, 1, 5, 10]))
    if fault.when == "save":
        w.add(w.style.save(s))
        odd = 0
    if chance.random() < 0.15:
        w.add(_caught(s), chance.randrange(s.ranks))
    job_first = chance.random() < 0.5  # the scheduler can print its message early or late
    early = chance.random() < 0.2
    if fault.job and job_first:
        w.add(fault.job(s), None)
    if early and s.ranks > 1 and fault.others == "closed":
        _others(w, fault, odd)
    at = len(w.lines)
    w.add(fault.lines(s), odd, uncaught=True)
    if not early or fault.others != "closed":
        _others(w, fault, odd)
    if chance.random() < 0.45:
        w.add(_teardown(s), chance.randrange(s.ranks))
    if chance.random() < 0.1 and at > 40:  # the stderr of another process was flushed first
        moved = w.lines[at:]
        del w.lines[at:]
        w.lines[at - 5 : at - 5] = moved
    _launcher(w, launcher, fault, odd)
    if fault.job and not job_first:
        w.add(fault.job(s), None)
    code = fault.code if fault.code >= 0 else 128 - fault.code
    # Ray's prefix names a process, not a rank.
    names_rank = s.ranks > 1 and not w.style.ray and bool(fault.lines(s))
    at_fault = odd if names_rank and fault.others in ("wait", "closed") else None
    return Log(w.text(launcher, code), fault.cause, fault.sign, code, at_fault, s.ranks, fault.source)


# ---------------------------------------------------------------- runs without a failure


def _ctrl_c(w: Writer) -> None:
    s = w.s
    w.add(
        [
            *("^C" for _ in range(s.chance.randrange(2))),
            "Traceback (most recent call last):",
            f'  File "{s.home}/train.py", line 212, in main',
            "    loss.backward()",
            '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 626, in backward',
            "    torch.autograd.backward(",
            "KeyboardInterrupt",
        ]
    )
    if s.chance.random() < 0.4:
        w.add(_teardown(s))


def _complete(w: Writer) -> None:
    w.start()
    w.steps(w.s.chance.randrange(30, 200), max(w.s.total // 150, 1))
    w.finish()


BENIGN = (
    "complete",
    "complete",
    "noisy",
    "caught",
    "unfinished",
    "interrupted",
    "restarted",
    "sweep",
    "early-stop",
    "teardown",
)


def benign(name: str, kind: str) -> Log:
    """Generate the log of a run without a failure. ``kind`` is the reason why the log looks suspicious."""
    chance = Random(name)
    s, launcher = _scene(chance, gpus=False)
    w, code = Writer(s), 0
    if kind == "complete":
        _complete(w)
    elif kind == "noisy":
        w.start()
        for _ in range(chance.randrange(3, 9)):
            w.steps(chance.randrange(8, 40), 2)
            w.add(list(chance.choice(NOISE)), chance.randrange(s.ranks))
        w.finish()
    elif kind == "caught":
        w.start()
        for _ in range(chance.randrange(1, 5)):
            w.steps(chance.randrange(8, 40), 2)
            w.add(_caught(s), chance.randrange(s.ranks))
        w.steps(chance.randrange(8, 40), 2)
        w.finish()
    elif kind == "unfinished":  # the log is read during the run or was truncated
        w.start()
        w.steps(chance.randrange(20, 200))
    elif kind == "interrupted":
        w.start()
        w.steps(chance.randrange(20, 120))
        _ctrl_c(w)
        code = 130
    elif kind == "restarted":  # the user fixed the cause of the first failure
        fault = chance.choice([item for item in FAULTS if item.when == "start" and not item.job])
        w.start()
        w.add(fault.lines(s))
        s.wait(600)
        s.step = 0
        _complete(w)
    elif kind == "sweep":
        for number in range(chance.randrange(2, 5)):
            w.add(
                [f"===== run {number + 1}: lr={chance.choice([1e-3, 3e-4, 1e-4])} seed={number} ====="], None
            )
            s.step = 0
            _complete(w)
    elif kind == "early-stop":
        w.start()
        w.steps(chance.randrange(30, 120), 3)
        w.add(
            [
                chance.choice(
                    [
                        "Early stopping triggered after 5 evaluations without improvement",
                        "EarlyStopping: val_loss did not improve, stopping.",
                        "Metric val/loss did not improve in the last 3 records. Best score: 1.812. Signaling Trainer to stop.",
                    ]
                )
            ]
        )
        w.add(w.style.save(s))
    else:
        _complete(w)
        w.add(_teardown(s), chance.randrange(s.ranks))
    return Log(w.text(launcher, code), "", "", code, None, s.ranks, f"generated, {kind}")


BENIGN_LOGS = 170


def logs() -> dict[str, Log]:
    """Return all generated logs by ID."""
    found = {}
    for fault in FAULTS:
        for number in range(VARIANTS):
            name = f"gen-{fault.name}-{number}"
            found[name] = failing(name, fault)
    for number in range(BENIGN_LOGS):
        name = f"gen-benign-{number:03d}"
        found[name] = benign(name, BENIGN[number % len(BENIGN)])
    return found


def generated_log(name: str) -> Log:
    """Return the generated log with this ID."""
    kind, _, number = name.removeprefix("gen-").rpartition("-")
    if kind == "benign":
        return benign(name, BENIGN[int(number) % len(BENIGN)])
    return failing(name, next(fault for fault in FAULTS if fault.name == kind))


if __name__ == "__main__":
    sys.stdout.write(generated_log(sys.argv[1]).text)
