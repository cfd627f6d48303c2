"""Check for model usage that is known to fail with this configuration or these versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from packaging.version import Version

from stallwatch_lint.batch import SIZES
from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.dsconfig import AUTO, DsConfig
from stallwatch_lint.run import Run
from stallwatch_lint.script import Call, Script, is_constant, scopes
from stallwatch_rules.text.lazy import lazy

#: Releases of TRL in which ``save_model`` of a trainer replaces the engine with the bare policy. In 0.11,
#: ``PPOTrainer`` is a different class, which has no ``save_model``.
_SAVES_BARE_POLICY = {"PPOv2Trainer": ">=0.11,<1.13", "PPOTrainer": ">=0.12,<1.13"}


def check_initialize(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find ``deepspeed.initialize`` without a model, and ``auto`` values that no library replaces.

    In ``deepspeed/__init__.py`` (0.9.0 to 0.19.8), DeepSpeed asserts that the call passes a model.
    """
    for call in script.initializations():
        model = call.argument("model", 1)
        if is_constant(model, None) or (model is None and not call.open):
            yield diagnostic("initialize-without-model", script.at(call))
    config = run.config
    if config is not None and script.deepspeed_itself:
        for key in SIZES:
            if config.get(key) == AUTO:
                yield diagnostic("auto-without-trainer", config.at(key), key=key)


def check_trl(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find calls to TRL trainers that fail with DeepSpeed in the installed release of TRL.

    In 0.12.2 and earlier, ``OnlineDPOTrainer`` prepares ``ref_model`` even if it is ``None``. The
    ``save_model`` method of the trainers in `_SAVES_BARE_POLICY` replaces the engine. Sources: trl 0.11.4 to
    1.13.0 (``trainer/online_dpo_trainer.py``, ``ppov2_trainer.py``, and ``ppo_trainer.py``, which is in
    ``experimental/ppo`` in later releases). The failures were reproduced with 0.11.4 and 0.12.2.
    """
    if run.config is None or run.version("trl") is None:
        return
    trl = run.versions["trl"]
    for call in script.called("OnlineDPOTrainer"):
        reference, peft = call.argument("ref_model", 1), call.argument("peft_config")
        none = reference is None or is_constant(reference, None)
        adapts = peft is not None and not is_constant(peft, None)
        if run.fits("trl", "<0.13") and none and adapts and not call.open:
            made = script.makers(peft)  # an object that the script constructs is certainly not ``None``
            sure = made and all(maker.last.endswith("Config") for maker in made)
            severity: Severity = "fails" if sure else "likely"
            yield diagnostic("online-dpo-without-reference", script.at(call), severity=severity, trl=trl)
    if run.stage == 3:
        affected = [name for name, releases in _SAVES_BARE_POLICY.items() if run.fits("trl", releases)]
        for call in script.called(*affected):
            yield diagnostic("ppo-save-unwrapped", script.at(call), call=call.last, trl=trl)


def check_loading(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find ``from_pretrained`` arguments that transformers rejects under ZeRO-3.

    Releases 4.38.2 to 5.0.0 reject ``device_map``. Releases 4.48.3 and earlier also reject
    ``low_cpu_mem_usage=True``.
    """
    if run.stage != 3 or not script.imports & {"transformers"}:
        return
    for call in script.called("from_pretrained"):
        value = call.argument("device_map")
        if value is None or is_constant(value, None) or "Model" not in call.owner:
            continue
        yield diagnostic("device-map-with-zero3", script.at(call), call=call.name)


def check_eval_mode(script: Script, run: Run) -> Iterator[Diagnostic]:
    """Find models that train in evaluation mode because the script calls ``eval()`` but never ``train()``.

    The ``eval()`` call must come before a backward pass in the same function. The model must belong to an
    engine, and the script must call the ``backward`` method of this engine. In contrast, reference models,
    teachers, and reward models are supposed to stay in evaluation mode. In DeepSpeed 0.15.3 and earlier,
    ZeRO-3 asserts in the backward pass that each module is in training mode
    (``runtime/zero/parameter_offload.py``). DeepSpeed 0.15.4 and later do not check the mode, and dropout
    stays off.
    """
    engines = [{*pair} - {"", "?"} for pair in script.engines]
    pulled = {call.owner for call in script.called("backward")}
    trained = {name for names in engines if names & pulled for name in names}
    back_on = {
        call.owner for call in script.called("train") if not is_constant(call.argument("mode", 0), False)
    }
    deepspeed = run.version("deepspeed")
    fatal = run.stage == 3 and deepspeed is not None and deepspeed < Version("0.15.4")
    for _, nodes in scopes(script.tree):
        calls = [Call.of(node) for node in nodes if isinstance(node, ast.Call)]
        backward = max((call.line for call in calls if call.last == "backward"), default=0)
        for call in calls:
            if call.last != "eval" or not call.owner or call.line > backward or call.owner not in trained:
                continue
            aliases = {call.owner}.union(*(names for names in engines if call.owner in names))
            if not aliases & back_on:
                yield diagnostic(
                    "trained-in-eval-mode",
                    script.at(call),
                    severity="fails" if fatal else "advice",
                    call=call.name,
                    model=call.owner,
                )


#: Names of mixture-of-experts models and classes. The first pattern matches the models whose blocks
#: DeepSpeed 0.18.0 and later treat as units (``DEFAULT_LEAF_MODULE_CLASSES`` in
#: ``runtime/zero/leaf_module_config.py``: Mixtral, Qwen2-MoE, and Qwen3-MoE).
_BY_ITSELF = lazy(r"(?i)\bmixtral|Qwen3-\d+B-A\d|qwen[23]_?moe|Qwen1\.5-MoE")
_OTHER = lazy(r"(?i)deepseek-?(?:moe|v[23])(?!.*distill)|SparseMoeBlock|olmoe|phi-?3\.5-moe")
_HANDLED_BY = {"trl", "swift", "llamafactory", "set_z3_leaf_modules", "leaf_module"}


def check_experts(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Yield a hint about a mixture-of-experts model whose blocks ZeRO-3 does not treat as units."""
    if config.stage != 3 or config.has("zero_optimization", "leaf_module"):
        return
    if any((script.imports | script.names) & _HANDLED_BY for script in run.scripts):
        return
    deepspeed = run.version("deepspeed")
    by_itself = deepspeed is not None and deepspeed >= Version("0.18.0")
    for script in run.scripts:
        if not any(name == "backward" or name.endswith("Trainer") for name in script.names):
            continue  # the script does not train
        places = list(script.strings)
        places += [(call.last, call.line) for call in script.calls]
        for text, line in sorted(places, key=lambda place: place[1]):
            found = _OTHER.search(text) or (None if by_itself else _BY_ITSELF.search(text))
            if found and len(text) < 200:
                yield diagnostic("experts-under-zero3", (script.file, line), name=found[0])
                break
