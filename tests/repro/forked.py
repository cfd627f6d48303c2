"""Start ranks as torchrun does, but as forks of one process that has imported the shared libraries.

    STALLWATCH_PROBE=0 python tests/repro/forked.py [--ranks 2] [--log-dir DIR] PROGRAM [OPTION …]

Importing torch and DeepSpeed takes longer than the reproductions' steps, and torchrun and each of its ranks
import them again. Use this for tests of the ranks; tests of the launcher, its messages or the start of a
Python use torchrun. With ``--log-dir``, output goes where ``torchrun --redirects 3`` writes it. The first
rank that fails ends the others.

The forking process has no probe; each rank loads its own, which finds the libraries already imported.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

LOOK = 0.02
GRACE = 30.0  # seconds, as in torchrun (torch 2.13, torch/distributed/elastic/multiprocessing/api.py)


def become_rank(rank: int, ranks: int, logs: Path | None, port_pipe: int) -> None:
    """Become a rank in a forked process, after the port of the store is known."""
    if logs is not None:
        own = logs / "run" / "attempt_0" / str(rank)
        own.mkdir(parents=True)
        for number, name in ((1, "stdout.log"), (2, "stderr.log")):
            file = os.open(own / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, number)
            os.close(file)
    with os.fdopen(port_pipe) as pipe:
        port = pipe.readline().strip()
    if not port:
        sys.exit("the launcher is gone")
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        # The store belongs to the launcher, so that no port has to be free: torch/distributed/rendezvous.py,
        # _create_c10d_store.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    os.environ.pop("STALLWATCH_PROBE", None)
    if "STALLWATCH_PROBE_DIR" in os.environ:
        bootstrap = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0], "sitecustomize.py")
        runpy.run_path(str(bootstrap), run_name="sitecustomize")


def launch(ranks: int, logs: Path | None, abandoned: Callable[[], bool]) -> int:
    """Fork the ranks: return in a rank; in the launcher, wait for the ranks and exit."""
    assert threading.active_count() == 1, "a fork has no threads"
    pipes = [os.pipe() for _ in range(ranks)]
    children: dict[int, int] = {}
    for rank, (port_pipe, _) in enumerate(pipes):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            for number, (read, write) in enumerate(pipes):
                os.close(write)
                if number != rank:
                    os.close(read)
            become_rank(rank, ranks, logs, port_pipe)
            return rank
        children[pid] = rank
    for read, _ in pipes:
        os.close(read)
    sys.exit(watch(children, [write for _, write in pipes], abandoned))


def watch(children: dict[int, int], tell_port: list[int], abandoned: Callable[[], bool]) -> int:
    """Act as the launcher until all ranks have ended; return 0 if all succeeded, otherwise 1."""
    from torch.distributed import TCPStore

    def end(*_: object) -> None:
        for pid in list(children):
            with contextlib.suppress(ProcessLookupError):  # the rank was reaped just before the signal
                os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120))
    for pipe in tell_port:
        os.write(pipe, f"{store.port}\n".encode())
        os.close(pipe)
    code, kill_at = 0, float("inf")
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank, ended = children.pop(pid), os.waitstatus_to_exitcode(status)
            if ended != 0 and code == 0:
                print(f"rank {rank} ended with {ended}", file=sys.stderr, flush=True)
                code, kill_at = 1, time.monotonic() + GRACE
                end()
            continue
        if code == 0 and abandoned():
            code, kill_at = 1, time.monotonic() + GRACE
            end()
        if time.monotonic() > kill_at:
            for each in children:
                os.kill(each, signal.SIGKILL)
        time.sleep(LOOK)
    return code


def import_all(*names: str) -> None:
    """Import the libraries that ranks need, and these names.

    An optimizer's first step would import the second library.
    """
    for name in ("tiny", "torch._dynamo", *names):
        pkgutil.resolve_name(name)
    # The first use of this attribute starts a compiler for each operator (DeepSpeed 0.19, deepspeed/ops).
    importlib.import_module("deepspeed.ops").__compatible_ops__  # noqa: B018
    gc.collect()
    gc.freeze()  # garbage collections in ranks need not visit a million shared objects


def main(
    arguments: list[str] | None = None, abandoned: Callable[[], bool] = lambda: False
) -> tuple[str, list[str]]:
    """Return the program of a rank in ranks; in the launcher, exit here, also if it is `abandoned`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("program")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    launch(chosen.ranks, chosen.log_dir, abandoned)
    return chosen.program, [chosen.program, *chosen.options]


if __name__ == "__main__":
    import_all()
    program, sys.argv = main()
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")
