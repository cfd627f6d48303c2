"""Training on ranks that ``torch.multiprocessing.spawn`` starts.

The ranks receive their numbers as arguments, not as environment variables.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from torch import multiprocessing

WORLD = 2
HOUR = 3600.0


def rank_main(rank: int, scenario: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    from common import event
    from loop import Loop

    def filter_samples() -> None:
        event("hang")
        time.sleep(HOUR)

    loop = Loop()
    loop.train(70)
    if rank == 1 and scenario == "rank_1_is_killed":
        event("kill")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and scenario == "rank_1_hangs":
        filter_samples()
    loop.train(500 if scenario != "steady" else 130)
    loop.finish()


def start(scenario: str) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    multiprocessing.spawn(rank_main, (scenario, port), nprocs=WORLD)


def steady() -> None:
    start("steady")


def rank_1_is_killed() -> None:
    start("rank_1_is_killed")


def rank_1_hangs() -> None:
    start("rank_1_hangs")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
