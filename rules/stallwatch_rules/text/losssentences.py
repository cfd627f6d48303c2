"""What a diagnosis says of a loss, in English and Chinese."""

from __future__ import annotations

OF_LOSSES: dict[str, tuple[str, str]] = {
    "loss-diverged": (
        "The loss ran away: {low} at its best, {high} (median) in the last {count} values.",
        "loss 已发散：最好时为 {low}，最近 {count} 个值的中位数为 {high}。",
    ),
    "spike": (
        "The loss jumped from {usual} to {loss} at step {step}.",
        "loss 在第 {step} 步从 {usual} 跳到 {loss}。",
    ),
    "spike-back": (
        "The loss jumped from {usual} to {loss} at step {step} and is coming back.",
        "loss 在第 {step} 步从 {usual} 跳到 {loss}，正在回落。",
    ),
    "loss-same": (
        "The last {count} values of the loss are all exactly {loss}.",
        "最近 {count} 个 loss 都恰好是 {loss}。",
    ),
    "loss-chance": (
        "The last {count} values of the loss all lie at {loss}, which is what guessing among {classes}"
        " classes costs: nothing is learnt.",
        "最近 {count} 个 loss 都停在 {loss}，正是在 {classes} 个类别中随机猜测的 loss：模型没有学到东西。",
    ),
    "loss-unlogged": (
        "{count} steps passed since a loss was last printed, many times the usual distance.",
        "距上次打印 loss 已有 {count} 步，远超平常的间隔。",
    ),
    "no-gradient-no-rate": (
        "The last {count} gradient norms are exactly 0, and so is the learning rate: no parameter changes.",
        "最近 {count} 个梯度范数恰好为 0，学习率也是 0：没有参数在更新。",
    ),
    "no-gradient-no-change": (
        "The last {count} gradient norms are exactly 0, and the loss does not change.",
        "最近 {count} 个梯度范数恰好为 0，loss 也没有变化。",
    ),
    "no-gradient-no-fall": (
        "The last {count} gradient norms are exactly 0, and the loss does not fall.",
        "最近 {count} 个梯度范数恰好为 0，loss 没有下降。",
    ),
}
