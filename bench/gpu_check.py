"""Check on a GPU whether Stallwatch recognizes that a rank waits for the device. The check takes ten minutes.

    make gpu-check

Three programs run under the real ``stallwatch run`` on one or two GPUs and are scored like the programs of
the live benchmark:

1. with two GPUs, a rank that does not join an NCCL collective; with one GPU, a stream that waits for an event
   that is not recorded;
2. a healthy training step with a kernel of one minute, which must cause no alarm;
3. a wait for the device (``torch.cuda.synchronize()``) that takes most of an hour.

The exit code is 0 if the results of all programs are right, 1 if a result is wrong, and 3 if this machine has
no GPU.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from live import BESIDE
from live_programs.table import Expected, Program
from live_runs import Run
from live_scoring import score

NO_GPU = 3
_FILE = "gpu.py"


def programs(devices: int) -> list[Program]:
    """Return the programs that this machine can run."""
    hang = Expected("stuck_on_the_device|synchronize", "own-code", limit="patience")
    listed = [
        Program("gpu-long-kernel", "gpu", _FILE, "long_kernel", 130),
        Program("gpu-synchronising-wait", "gpu", _FILE, "synchronising_wait", 80, expected=hang),
    ]
    if devices > 1:
        missing = Expected("collapse", "own-code", 1)
        return [
            *listed,
            Program("gpu-nccl-hang", "gpu", _FILE, "nccl_hang", 90, form="torchrun2", expected=missing),
        ]
    return [*listed, Program("gpu-stream-hang", "gpu", _FILE, "stream_hang", 80, expected=hang)]


def devices() -> int:
    """Return the number of GPUs that torch can use."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def main() -> int:
    count = devices()
    if not count:
        print(
            "no GPU found: gpu-check needs an NVIDIA GPU and a CUDA build of torch (make gpu-check TORCH=…)"
        )
        return NO_GPU
    wrong = 0
    for program in programs(count):
        run = Run(program, 1, BESIDE)
        judged = score(program, run.observe())
        after = f" after {judged.seconds:.0f} s" if judged.seconds is not None else ""
        print(f"{program.name}: {judged.outcome}{after} {judged.why}", flush=True)
        wrong += judged.outcome != "right"
        if judged.outcome == "right":
            run.discard()
        else:
            print(f"  see {run.folder}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
