"""Failures of one process's tensors: precision, gradients, devices, sampling."""

from __future__ import annotations

import torch
from loop import net, train
from torch import nn
from torch.utils.checkpoint import checkpoint


def dtype_mismatch() -> None:
    """Pass float32 input to a model in bfloat16."""
    train(5)
    net().to(torch.bfloat16)(torch.randn(4, 16))


def loss_does_not_require_grad() -> None:
    """Freeze all parameters, so that the loss needs no gradient."""
    model = net().requires_grad_(False)
    model(torch.randn(4, 16)).mean().backward()


def torch_not_compiled_with_cuda() -> None:
    """Use the device "cuda" on a CPU build of torch."""
    net().to("cuda")


def sampling_nan_probabilities() -> None:
    """Sample from a policy whose probabilities are NaN."""
    train(5)
    torch.multinomial(torch.full((2, 8), float("nan")), 1)


def checkpoint_recompute_mismatch() -> None:
    """Change the forward pass when it is recomputed."""
    train(5)
    calls = iter(range(9))
    layer = nn.Linear(16, 16)

    def block(hidden: torch.Tensor) -> torch.Tensor:
        hidden = layer(hidden)
        return hidden if next(calls) else layer(hidden).exp()

    hidden = torch.randn(4, 16, requires_grad=True)
    checkpoint(block, hidden, use_reentrant=False).sum().backward()


def inference_tensor_saved_for_backward() -> None:
    """Use a tensor from inference mode in the training step."""
    train(5)
    with torch.inference_mode():
        features = torch.randn(4, 16)
    net()(features).sum().backward()


def fp16_unscale_error() -> None:
    """Use fp16 weights with a gradient scaler."""
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(2, 4).half()).float().mean()).backward()
    scaler.unscale_(optimizer)


def loss_nan() -> None:
    """Let one bad batch make a weight NaN, and continue the run."""
    model = net()
    train(40, model=model, at=20, then=lambda: model[0].weight.data.fill_(float("nan")))


def loss_divergence() -> None:
    """Let the loss fall, and then diverge by a learning rate that is too high, without NaN."""
    model = train(60, learning_rate=0.5)
    train(60, model=model, learning_rate=6.0, clip=1.0)


def loss_spike() -> None:
    """Overwrite one weight of a trained model (a flipped bit), six steps before the end."""
    model = train(60, learning_rate=0.5)

    def flip() -> None:
        with torch.no_grad():
            model[2].weight[3, 5] = 60.0  # type: ignore[index]

    train(36, model=model, learning_rate=0.5, clip=0.1, at=30, then=flip)


def loss_frozen() -> None:
    """Give the optimizer the parameters of a replaced model, so that nothing is learned."""
    model, replaced = net(), net()
    optimizer = torch.optim.SGD(replaced.parameters(), lr=0.05)
    features = torch.randn(8, 16)
    for step in range(1, 61):
        loss = (model(features) - features).pow(2).mean()
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        print(
            f"{{'loss': {loss.item():.6f}, 'grad_norm': {norm.item():.4f}, 'learning_rate': 0.05,"
            f" 'epoch': {step / 100:.2f}}}"
        )


def ddp_meta_parameters() -> None:
    """Wrap a model on the meta device that was never materialized."""
    with torch.device("meta"):
        model = net()
    model(torch.randn(2, 16))
