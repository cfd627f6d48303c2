"""A generation pass leaves the model in evaluation mode, and the next backward pass runs in it.

DeepSpeed up to 0.15.3 refuses this under ZeRO-3; newer versions train on.
"""

import argparse
from pathlib import Path

import tiny
import torch
from torch import nn

parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
parser.add_argument("--hold", type=Path, help="end only when this file is there")
options = parser.parse_args()

STEPS, GENERATE_EVERY = 6, 4
rank = tiny.start()
engine = tiny.prepare(tiny.Net(), tiny.config(stage3_prefetch_bucket_size=0))
for step, (features, targets) in enumerate(tiny.batches(rank, STEPS), start=1):
    if step % GENERATE_EVERY == 0:
        print(f"rank {rank} generating samples")
        engine.eval()  # the bug: engine.train() is missing after this line
        with torch.no_grad():
            engine(features)
    loss = nn.functional.mse_loss(engine(features), targets)
    engine.backward(loss)
    engine.step()
    tiny.report(rank, step, STEPS, loss)
tiny.wait_for(options.hold)
tiny.finish()
