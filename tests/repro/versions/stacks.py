"""Stacks to test: each has one DeepSpeed, a TRL of the same time, and packages that fit this TRL."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class Stack:
    """Pins of one environment. All stacks use the environment's torch."""

    deepspeed: str
    trl: str
    transformers: str
    accelerate: str
    peft: str = "0.13.2"
    datasets: str = "3.6.0"
    trainers: tuple[str, ...] = ()  #: TRL trainers that are tested with this stack

    @property
    def name(self) -> str:
        return f"deepspeed-{self.deepspeed}"

    @property
    def version(self) -> Version:
        return Version(self.deepspeed)

    def pins(self) -> list[str]:
        """Return the packages to install after torch. TRL 0.11 imports rich without declaring it."""
        named = ("deepspeed", "trl", "transformers", "accelerate", "peft", "datasets")
        return [*(f"{name}=={getattr(self, name)}" for name in named), "rich"]


STACKS = (
    Stack("0.14.5", "0.11.4", "4.46.3", "0.34.2", trainers=("ppo",)),
    Stack("0.15.3", "0.12.2", "4.46.3", "0.34.2", trainers=("online-dpo", "ppo")),
    Stack("0.15.4", "0.14.0", "4.48.3", "1.2.1", trainers=("grpo",)),
    Stack("0.16.3", "0.15.2", "4.48.3", "1.2.1", trainers=("grpo",)),
    Stack("0.16.4", "0.14.0", "4.48.3", "1.2.1", trainers=("grpo",)),
    Stack("0.17.6", "0.19.1", "4.53.3", "1.8.1", "0.15.2", "3.6.0", trainers=("grpo",)),
    Stack("0.18.9", "0.24.0", "4.57.6", "1.11.0", "0.17.1", "4.4.2", trainers=("grpo",)),
    Stack(
        "0.19.8",
        "1.16.0",
        "5.23.0",
        "1.15.0",
        "0.21.2",
        "5.2.0",
        trainers=("grpo", "online-dpo", "sft", "dpo"),
    ),
)
