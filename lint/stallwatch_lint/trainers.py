"""Calls in a training script that are known to fail with this configuration or these versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import AUTO, DsConfig
from stallwatch_lint.nones import is_nothing
from stallwatch_lint.script import Script, dotted, is_constant
from stallwatch_lint.versions import fits, version_of

_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def check_initialize(script: Script, config: DsConfig | None) -> Iterator[Diagnostic]:
    """``deepspeed.initialize`` without a model (asserted in ``deepspeed/__init__.py``, 0.9.0 to 0.19.8), and
    ``auto`` values with nobody to fill them in."""
    for call in script.initializations():
        model = call.argument("model", 1)
        surely = is_constant(model, None) or (model is None and not call.open)
        if surely or (model is not None and is_nothing(script, model)):
            yield Diagnostic(
                "initialize-without-model",
                "fails" if surely else "likely",
                Words("deepspeed.initialize gets no model", "deepspeed.initialize 没有得到 model"),
                Words("DeepSpeed asserts that there is one.", "DeepSpeed 断言必须有 model。"),
                Words(
                    "Pass model=…, or skip the call when there is none.",
                    "传入 model=…，没有模型时跳过这个调用。",
                ),
                "deepspeed-initialize-model-none",
                script.file,
                call.line,
            )
    if config is None or not script.deepspeed_itself:
        return
    for key in _BATCH_KEYS:
        if config.get(key) == AUTO:
            yield Diagnostic(
                "auto-without-trainer",
                "likely",
                Words(
                    f'{key} is "auto", and this script starts DeepSpeed itself',
                    f'{key} 为 "auto"，而脚本自己启动 DeepSpeed',
                ),
                Words(
                    "Only transformers and accelerate fill auto values in; DeepSpeed cannot"
                    " calculate with the word.",
                    "只有 transformers 和 accelerate 会填入 auto；DeepSpeed 无法用这个词计算。",
                ),
                Words("Write a number.", "写一个数字。"),
                "deepspeed-config-invalid",
                config.file,
                config.line(key),
            )


def check_trl(script: Script, config: DsConfig | None, versions: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Trainers of TRL releases that meet DeepSpeed in a way that fails.

    Read in trl 0.11.4 to 0.16.1: ``trainer/online_dpo_trainer.py`` prepares ``ref_model`` unguarded up to
    0.12.2; ``trainer/ppo_trainer.py``, ``ppov2_trainer.py`` (``save_model``) and ``rloo_trainer.py`` put
    the bare policy in the engine's place. Reproduced with 0.11.4 and 0.12.2.
    """
    if config is None or version_of(versions, "trl") is None:
        return
    trl = versions["trl"]
    for call in script.called("OnlineDPOTrainer"):
        reference, peft = call.argument("ref_model", 1), call.argument("peft_config")
        none = reference is None or is_constant(reference, None)
        if (
            fits(versions, "trl", "<0.13")
            and none
            and not call.open
            and peft is not None
            and not is_constant(peft, None)
        ):
            yield Diagnostic(
                "online-dpo-without-reference",
                "fails" if _made_here(script, peft) else "likely",
                Words(
                    f"OnlineDPOTrainer of trl {trl} hands DeepSpeed a reference model that is None",
                    f"trl {trl} 的 OnlineDPOTrainer 会把为 None 的参考模型交给 DeepSpeed",
                ),
                Words(
                    "With a PEFT configuration there is no reference model; trl before 0.13"
                    " prepares it all the same.",
                    "使用 PEFT 时没有参考模型；0.13 之前的 trl 仍会去准备它。",
                ),
                Words(
                    'pip install -U "trl>=0.13", or pass ref_model.',
                    'pip install -U "trl>=0.13"，或传入 ref_model。',
                ),
                "deepspeed-initialize-model-none",
                script.file,
                call.line,
            )
    if config.stage == 3 and fits(versions, "trl", ">=0.11,<0.16"):
        for call in script.called("PPOTrainer", "PPOv2Trainer"):
            yield Diagnostic(
                "ppo-save-unwrapped",
                "likely",
                Words(
                    f"{call.last} of trl {trl} cannot save under ZeRO-3",
                    f"trl {trl} 的 {call.last} 在 ZeRO-3 下无法保存",
                ),
                Words(
                    "Its save_model puts the bare policy in the place of the DeepSpeed engine; the"
                    " first save raises an AttributeError.",
                    "它的 save_model 用裸 policy 代替了 DeepSpeed engine；第一次保存就会报 AttributeError。",
                ),
                Words(
                    "Use ZeRO-2, or override save_model; try save_steps=1 first.",
                    "用 ZeRO-2，或重写 save_model；先用 save_steps=1 试一次。",
                ),
                "zero3-save-unwrapped-model",
                script.file,
                call.line,
            )


def _made_here(script: Script, value: ast.expr) -> bool:
    """Whether it is an object made in this script (``LoraConfig(…)``), and so not perhaps ``None``."""
    if isinstance(value, ast.Name):
        found = [
            node.value
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Assign) and any(dotted(target) == value.id for target in node.targets)
        ]
        return bool(found) and all(_is_config(one) for one in found)
    return _is_config(value)


def _is_config(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and dotted(value.func).rsplit(".", 1)[-1].endswith("Config")


def check_loading(script: Script, config: DsConfig) -> Iterator[Diagnostic]:
    """``from_pretrained`` arguments that transformers refuses under ZeRO-3 (4.38.2 to 5.0.0: ``device_map``;
    up to 4.48.3 ``low_cpu_mem_usage=True`` as well)."""
    if config.stage != 3 or not script.imports & {"transformers"}:
        return
    for call in script.called("from_pretrained"):
        value = call.argument("device_map")
        if value is None or is_constant(value, None) or "Model" not in call.owner:
            continue
        yield Diagnostic(
            "device-map-with-zero3",
            "likely",
            Words(f"{call.name} gets a device_map under ZeRO-3", f"ZeRO-3 下 {call.name} 传入了 device_map"),
            Words(
                "transformers refuses it once the training arguments with DeepSpeed exist; without"
                " them each rank loads the whole model.",
                "带 DeepSpeed 的 TrainingArguments 存在时 transformers 会拒绝；否则每个 rank"
                " 都会加载整个模型。",
            ),
            Words("Take device_map out: ZeRO-3 places the weights.", "去掉 device_map：权重由 ZeRO-3 放置。"),
            "zero3-device-map-incompatible",
            script.file,
            call.line,
        )


def check_best_model(script: Script, config: DsConfig | None) -> Iterator[Diagnostic]:
    """``save_only_model`` with ``load_best_model_at_end`` raises under DeepSpeed (transformers 5.23.0,
    ``trainer.py``; since 4.38)."""
    if config is None:
        return
    for call in script.calls:
        both = (call.argument("save_only_model"), call.argument("load_best_model_at_end"))
        if call.last.endswith(("TrainingArguments", "Config")) and all(
            is_constant(one, True) for one in both
        ):
            yield Diagnostic(
                "best-model-without-optimizer",
                "fails",
                Words(
                    "save_only_model and load_best_model_at_end exclude each other under DeepSpeed",
                    "DeepSpeed 下 save_only_model 与 load_best_model_at_end 不能同时使用",
                ),
                Words(
                    "The Trainer raises a ValueError when it is made.", "Trainer 在创建时抛出 ValueError。"
                ),
                Words("Set one of them to False.", "把其中一个设为 False。"),
                "training-arguments-conflict",
                script.file,
                call.line,
            )
