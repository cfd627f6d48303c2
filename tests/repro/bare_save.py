"""A ZeRO-3 run that saves its weights twice: with save_checkpoint, and without the engine and gathering."""

import sys
from pathlib import Path

import tiny
import torch
from safetensors.torch import save_file

out = Path(sys.argv[1])
tiny.start()
engine = tiny.prepare(tiny.Net(), tiny.config())
for features, targets in tiny.batches(0, 1):
    loss = torch.nn.functional.mse_loss(engine(features), targets)
    engine.backward(loss)
    engine.step()
engine.save_checkpoint(str(out / "zero"))
weights = {name: value.detach().clone() for name, value in engine.module.state_dict().items()}
save_file(weights, out / "model.safetensors")
torch.save(weights, out / "pytorch_model.bin")
tiny.finish()
