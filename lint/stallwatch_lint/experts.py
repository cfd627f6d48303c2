"""Mixture-of-experts models under ZeRO-3: the expert block should be one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.script import Script
from stallwatch_rules.text.lazy import lazy

#: names of models and classes; the first group are those that DeepSpeed treats as units by itself since
#: 0.18.0
#: (``DEFAULT_LEAF_MODULE_CLASSES`` in ``runtime/zero/leaf_module_config.py``: Mixtral, Qwen2-MoE, Qwen3-MoE)
_BY_ITSELF = lazy(r"(?i)\bmixtral|Qwen3-\d+B-A\d|qwen[23]_?moe|Qwen1\.5-MoE")
_OTHER = lazy(r"(?i)deepseek-?(?:moe|v[23])(?!.*distill)|SparseMoeBlock|olmoe|phi-?3\.5-moe")
_HANDLED_BY = {"trl", "swift", "llamafactory", "set_z3_leaf_modules", "leaf_module"}


def check_experts(
    config: DsConfig, scripts: Sequence[Script], deepspeed: Version | None
) -> Iterator[Diagnostic]:
    """A hint where a script names such a model and nothing makes its expert block a unit."""
    if config.stage != 3 or config.has("zero_optimization", "leaf_module"):
        return
    if any((script.imports | script.names) & _HANDLED_BY for script in scripts):
        return
    by_itself = deepspeed is not None and deepspeed >= Version("0.18.0")
    for script in scripts:
        if not any(name == "backward" or name.endswith("Trainer") for name in script.names):
            continue  # it trains nothing
        places = list(script.strings)
        places += [(call.last, call.line) for call in script.calls]
        for text, line in sorted(places, key=lambda place: place[1]):
            found = _OTHER.search(text) or (None if by_itself else _BY_ITSELF.search(text))
            if found and len(text) < 200:
                yield diagnostic("experts-under-zero3", (script.file, line), name=found[0])
                break
