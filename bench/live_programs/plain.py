"""Healthy single-process training loops with slow parts of many kinds."""

from __future__ import annotations

import http.server
import io
import logging
import math
import random
import socketserver
import sys
import threading
import time
import urllib.request
from pathlib import Path

import torch
from common import CHANCE, SEED, SlowFile, about, event, run, say
from loop import WIDTH, Loop
from torch.utils.data import DataLoader, Dataset


def silent_evaluation() -> None:
    loop = Loop()
    loop.train(60)
    loop.evaluate(about(80, 0.5))
    loop.train(30)
    loop.finish()


def announced_evaluation() -> None:
    loop = Loop()
    loop.train(60)
    say("Running validation ...")
    loss = loop.evaluate(about(80))
    say(f"validation loss {loss:.4f}")
    loop.train(30)
    loop.finish()


def evaluation_with_a_bar() -> None:
    from tqdm import tqdm

    loop = Loop()
    loop.train(60)
    loop.net.eval()
    loop.net.pause = 0.5
    with torch.no_grad():
        for _ in tqdm(range(int(about(80) / 0.5)), desc="eval"):
            loop.net(loop.batch())
    loop.train(30)
    loop.finish()


def inference_mode_evaluation() -> None:
    """Evaluate in inference mode, without switching the model to evaluation mode."""
    loop = Loop()
    loop.train(60)
    loop.net.pause = 2.0
    with torch.inference_mode():
        for _ in range(int(about(80) / 2)):
            loop.net(loop.batch())
    loop.train(30)
    loop.finish()


def compute_metrics(seconds: float) -> None:
    """Simulate a slow metric over all predictions on one core."""
    time.sleep(seconds)


def slow_metric_from_the_first_evaluation_on() -> None:
    loop = Loop()
    for _ in range(3):
        loop.train(40)
        loop.evaluate(4)
        compute_metrics(about(40))
    loop.train(10)
    loop.finish()


SAVED = 40 << 20  #: size of a checkpoint in bytes


def save_slowly(loop: Loop, path: Path, seconds: float) -> None:
    state = {"model": loop.net.state_dict(), "moments": torch.zeros(SAVED // 4)}
    with SlowFile(path, seconds, SAVED) as file:
        torch.save(state, file)  # type: ignore[arg-type]


def slow_torch_save() -> None:
    loop = Loop()
    loop.train(60)
    save_slowly(loop, Path("checkpoint-60.pt"), about(75))
    loop.train(30)
    loop.finish()


def slow_safetensors() -> None:
    from safetensors.torch import save

    loop = Loop()
    loop.train(60)
    data = save({"moments": torch.zeros(SAVED // 4)})
    with SlowFile(Path("model.safetensors"), about(75), len(data)) as file:
        file.write(data)
    loop.train(30)
    loop.finish()


def final_save_and_merge() -> None:
    """Merge adapters after the last step, and then save the model."""
    loop = Loop(total=80)
    loop.train(80)
    say("Merging LoRA weights ...")
    for _ in range(30):
        torch.zeros(1 << 20).add_(1)
        time.sleep(1)
    save_slowly(loop, Path("merged.pt"), about(30))
    loop.finish()


class Drain(http.server.BaseHTTPRequestHandler):
    """A server that reads the data of an upload slowly."""

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 18)))
            time.sleep(0.25 * (1 + 0.2 * SEED / 10))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def upload() -> None:
    loop = Loop()
    loop.train(60)
    buffer = io.BytesIO()
    torch.save({"moments": torch.zeros(SAVED // 4)}, buffer)
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("Uploading the checkpoint ...")
    address = f"http://127.0.0.1:{server.server_address[1]}/checkpoint"
    request = urllib.request.Request(address, data=buffer.getvalue(), method="PUT")
    urllib.request.urlopen(request, timeout=300).close()
    loop.train(30)
    loop.finish()


def checkpoint_rotation() -> None:
    """Save a checkpoint every 20 steps and keep the two newest."""
    loop = Loop()
    for _ in range(10):
        loop.train(20)
        folder = Path(f"checkpoint-{loop.step_number}")
        folder.mkdir()
        torch.save(loop.net.state_dict(), folder / "pytorch_model.bin")
        torch.save(loop.optimizer.state_dict(), folder / "optimizer.pt")
        say(f"saved {folder}")
        old = Path(f"checkpoint-{loop.step_number - 40}")
        if old.exists():
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
    loop.finish()


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8 * 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(WIDTH)


def open_the_shards(_worker: int) -> None:
    """Simulate a worker of the data loader that opens files before its first batch."""
    time.sleep(about(45))


def loader_workers_start_slowly() -> None:
    loop = Loop()
    for epoch in range(2):
        say(f"epoch {epoch}")
        for features in DataLoader(Samples(), 8, num_workers=2, worker_init_fn=open_the_shards):
            loop.step(features)
    loop.finish()


def shuffle(seconds: float) -> None:
    """Simulate the shuffle of an index that does not fit into memory."""
    time.sleep(seconds)


def shuffle_at_each_epoch() -> None:
    loop = Loop()
    for epoch in range(4):
        shuffle(about(15))
        say(f"epoch {epoch}")
        for features in DataLoader(Samples(), 8, shuffle=True):
            loop.step(features)
    loop.finish()


def gradient_accumulation() -> None:
    """Run 64 forward and backward passes of 0.3 s for each step."""
    loop = Loop()
    loop.model.train()
    loop.net.pause = 0.3
    for number in range(1, 8):
        for _ in range(64):
            loss = loop.model(loop.batch()).square().mean() / 64
            loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        say(f"step {number}/500 loss {loss.item() * 64:.4f}")
    loop.finish()


def uneven(sigma: float) -> None:
    loop = Loop(0.3)
    loop.train_unevenly(90, sigma)
    loop.finish()


def uneven_steps_04() -> None:
    uneven(0.4)


def uneven_steps_08() -> None:
    uneven(0.8)


def uneven_steps_10() -> None:
    uneven(1.0)


def long_first_step() -> None:
    """Run a first step that takes a long time, because it waits for a compiler."""
    loop = Loop()
    loop.step(pace=about(60))
    loop.train(100)
    loop.finish()


def reads_for_long_at_the_start() -> None:
    size = 64 << 20
    Path("corpus.bin").write_bytes(bytes(size))
    say("Loading the corpus ...")
    with Path("corpus.bin").open("rb", buffering=0) as file:
        while file.read(size // 140):
            time.sleep(about(0.5))
    loop = Loop()
    loop.train(100)
    loop.finish()


def parse(sample: int) -> int:
    if sample % 9 == 0:
        raise ValueError(f"sample {sample} has no field 'text'")
    return sample


def caught_exceptions() -> None:
    """Log the tracebacks of bad samples and skip these samples."""
    logging.basicConfig(level=logging.INFO)
    loop = Loop()
    for sample in range(200):
        try:
            parse(sample)
        except ValueError:
            logging.exception("skipped a bad sample")
            continue
        loop.step()
    loop.finish()


def retry_warnings() -> None:
    """Log two failed attempts of a storage request every ten seconds, as if the third attempt succeeded."""
    logging.basicConfig(level=logging.WARNING)
    loop = Loop()
    for _ in range(7):
        loop.train(40)
        for attempt in (1, 2):
            logging.warning(
                "ConnectionError: HTTPSConnectionPool(host='storage', port=443): Read timed out."
                " Retrying in %s s [Retry %s/5].",
                attempt,
                attempt,
            )
            time.sleep(attempt)
    loop.finish()


def noise_of_a_logger() -> None:
    """Log errors about a metrics service that cannot be reached. The training is not affected."""
    stop = threading.Event()

    def complain() -> None:
        while not stop.wait(2):
            print(
                "wandb: Network error (ConnectionError), entering retry loop.\n"
                "wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [502]>)",
                file=sys.stderr,
                flush=True,
            )

    threading.Thread(target=complain, daemon=True).start()
    loop = Loop()
    loop.train(200)
    stop.set()
    loop.finish()


def early_stopping() -> None:
    loop = Loop(total=5000)
    best, bad = math.inf, 0
    while bad < 3:
        loop.train(40)
        loss = loop.evaluate(3) ** 2 + loop.step_number
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        say(f"validation loss {loss:.4f}, {bad} without improvement")
    say("Early stopping: the validation loss did not improve for 3 evaluations")
    loop.finish()


def interrupted_by_its_user() -> None:
    """Train until the runner sends Control+C, as a user would at the terminal."""
    loop = Loop()
    loop.train(100)
    event("interrupt")
    loop.train(400)


def trace_cache_lines_while_steps_advance() -> None:
    loop = Loop()
    for number in range(250):
        if number > 40 and number % 3 == 0:
            say(f"Invalidate trace cache @ step {number % 7} and module 11: cache has only 7 modules")
        loop.step()
    loop.finish()


def loss_spikes() -> None:
    loop = Loop()
    chance = random.Random(SEED)
    for _ in range(250):
        loop.step(loss_factor=8.0 if chance.random() < 0.02 else CHANCE.uniform(0.8, 1.2))
    loop.finish()


if __name__ == "__main__":
    run(globals())
