"""A trainer saves its policy after replacing the ZeRO-3 engine by the module inside it.

accelerate queries whether the weights are gathered on save; only the engine can answer.
"""

import os

for name, value in {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "ACCELERATE_MIXED_PRECISION": "bf16",
}.items():
    os.environ.setdefault(name, value)

import tiny  # noqa: E402
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.utils import DeepSpeedPlugin, DummyOptim  # noqa: E402
from torch import nn  # noqa: E402


class PolicyAndValue(nn.Module):
    """Both networks of a PPO trainer in one module, so that DeepSpeed prepares them together."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = tiny.Net()
        self.value_model = tiny.Net(outputs=1)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(features), self.value_model(features)


STEPS = 3
rank = tiny.start()
settings = {**tiny.config(stage3_gather_16bit_weights_on_model_save=True), "bf16": {"enabled": True}}
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings))
model = PolicyAndValue()
engine, _ = accelerator.prepare(model, DummyOptim(model.parameters()))
for step, (features, targets) in enumerate(tiny.batches(rank, STEPS), start=1):
    predicted, value = engine(features.bfloat16())
    loss = nn.functional.mse_loss(predicted.float(), targets) + value.float().square().mean()
    accelerator.backward(loss)
    tiny.report(rank, step, STEPS, loss)
print("saving the policy")
accelerator.get_state_dict(engine.policy)
tiny.finish()
