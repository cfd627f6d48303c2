"""Calls in a training script that are known to fail with this configuration or these versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
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
            yield diagnostic(
                "initialize-without-model", script.at(call), severity="fails" if surely else "likely"
            )
    if config is None or not script.deepspeed_itself:
        return
    for key in _BATCH_KEYS:
        if config.get(key) == AUTO:
            yield diagnostic("auto-without-trainer", config.at(key), key=key)


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
            yield diagnostic(
                "online-dpo-without-reference",
                script.at(call),
                severity="fails" if _made_here(script, peft) else "likely",
                trl=trl,
            )
    if config.stage == 3 and fits(versions, "trl", ">=0.11,<0.16"):
        for call in script.called("PPOTrainer", "PPOv2Trainer"):
            yield diagnostic("ppo-save-unwrapped", script.at(call), call=call.last, trl=trl)


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
        yield diagnostic("device-map-with-zero3", script.at(call), call=call.name)


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
            yield diagnostic("best-model-without-optimizer", script.at(call))
