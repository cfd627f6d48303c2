"""Run a program that does not fail, but whose log can look suspicious: ``python fine.py SCENARIO``."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings

import torch.distributed as dist
from faults import RANK, SEED, STEPS, TOTAL, ddp, train


def fine() -> None:
    print(f"Namespace(lr=0.0003, steps={STEPS}, seed={SEED}, on_error='raise', dry_run=False)")
    train(total=STEPS)
    print("Training complete. Saved model to out/final.pt")


def fine_ddp() -> None:
    model = ddp()
    train(model=model, total=STEPS)
    if RANK == 0:
        print("done training")
    dist.destroy_process_group()


def fine_with_retries() -> None:
    """Log two failed downloads before the third attempt succeeds, and a traceback for a skipped sample."""
    model = train(STEPS // 2, total=STEPS)
    for attempt in range(3):
        try:
            if attempt < 2:
                raise ConnectionResetError(104, "Connection reset by peer")
        except ConnectionResetError as error:
            logging.warning("download failed (%s), retrying in 1 s (attempt %d/5)", error, attempt + 1)
    try:
        json.loads('{"text": ')
    except ValueError:
        logging.exception("skipping sample 1284 of shard 3")
    train(STEPS, model, total=STEPS)
    print("Finished training: 1 sample skipped, 0 errors")


def fine_with_warnings() -> None:
    warnings.warn("CUDA is not available, falling back to CPU", RuntimeWarning, stacklevel=1)
    warnings.warn("lr_scheduler.step() was called before optimizer.step()", UserWarning, stacklevel=1)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(asctime)s | %(levelname)s | %(message)s"
    )
    logging.error("Could not load the optional fused kernel; using the eager implementation")
    train(total=STEPS)
    print("epoch 1 finished")


def fine_with_dying_thread() -> None:
    """Make a telemetry thread fail while the training continues."""
    threading.Thread(target=lambda: {}["endpoint"]).start()
    train(total=STEPS)
    print("Training finished")


def fine_del_noise() -> None:
    """Print a traceback at exit, because the finalizer of an object fails."""

    class Writer:
        def __del__(self) -> None:
            raise RuntimeError("writer is closed")

    train(total=STEPS)
    print("saved checkpoint to out/last.pt")
    globals()["kept"] = Writer()


def fine_early_stop() -> None:
    train(total=TOTAL)
    print("Early stopping: val_loss did not improve for 5 evaluations. Restoring best weights.")


def fine_loss_spikes() -> None:
    model = train(STEPS, total=4 * STEPS)
    for _ in range(3):
        train(3, model, total=4 * STEPS, factor=40.0)
        train(STEPS, model, total=4 * STEPS)
    print("Training complete.")


def interrupted() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    train()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
