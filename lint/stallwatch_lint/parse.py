"""Parse the text of a configuration. If the text cannot be read, report the line and the reason.

DeepSpeed reads the file as Hjson, which allows comments and trailing commas. DeepSpeed rejects duplicate keys
(0.9.0 to 0.19.8, ``runtime/config.py``). transformers and accelerate first read the file as strict JSON
(accelerate 1.15.0, ``utils/deepspeed.py``, ``HfDeepSpeedConfig``) and use the last value of a duplicate key.

The YAML file for accelerate is read as the DeepSpeed configuration that accelerate builds from the file.
accelerate turns an entry of ``deepspeed_config`` into an environment variable, and the variable into a value
of the configuration (accelerate 1.15.0, ``DeepSpeedPlugin`` in ``utils/dataclasses.py``, and
``utils/launch.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import hjson
import yaml
from msgspec.structs import replace

from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.dsconfig import DsConfig, Path, has_auto
from stallwatch_rules.messages import message
from stallwatch_rules.pages.frontmatter import LOADER
from stallwatch_rules.text.foreign_json import MAX_DEPTH, require_bounded, without_surrogates
from stallwatch_rules.text.lazy import lazy

MAX_KEYS = 10_000  #: maximum number of keys with stored line numbers

#: Maximum length of text whose keys get line numbers. Longer text takes seconds to parse.
MAX_PLACED = 1 << 20

#: Paths of keys in the DeepSpeed configuration, by the corresponding name in the accelerate file.
_TARGETS: Mapping[str, Path] = {
    "zero_stage": ("zero_optimization", "stage"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
    "zero3_save_16bit_model": ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
    "offload_optimizer_device": ("zero_optimization", "offload_optimizer", "device"),
    "offload_optimizer_nvme_path": ("zero_optimization", "offload_optimizer", "nvme_path"),
    "offload_param_device": ("zero_optimization", "offload_param", "device"),
    "offload_param_nvme_path": ("zero_optimization", "offload_param", "nvme_path"),
}
_QUOTED = lazy(r'"([^"]*)"')
_DEFAULT_STAGE = 2  # the default of ``ACCELERATE_DEEPSPEED_ZERO_STAGE`` in accelerate


class Parsed(NamedTuple):
    """The result of parsing a file: its configuration and the diagnostics about its text.

    ``config`` is ``None`` if the file contains no DeepSpeed configuration or cannot be read. ``other_file``
    is the configuration file to which the accelerate file refers.
    """

    config: DsConfig | None
    diagnostics: list[Diagnostic]
    other_file: str | None = None


def parse_json(text: str, file: str) -> Parsed:
    """Parse a DeepSpeed configuration in JSON or Hjson."""
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in found)
        twice.extend(without_surrogates(name) for name, count in sorted(names.items()) if count > 1)
        return dict(found)

    def unreadable(reason: str) -> Parsed:
        found = diagnostic("config-unreadable", (file, 1), reason=message(reason), file=file)
        return Parsed(None, [found])

    diagnostics: list[Diagnostic] = []
    try:
        values = without_surrogates(require_bounded(json.loads(text, object_pairs_hook=pairs)))
    except ValueError as error:
        twice.clear()
        values, found = _hjson(text, file, error, pairs)
        diagnostics.append(found)
        if values is None:
            return Parsed(None, diagnostics)
    except RecursionError:
        return unreadable("lint.nested-too-deeply")
    if not isinstance(values, dict):
        return unreadable("lint.no-object")
    severity: Severity | None = "likely" if has_auto(values) else None
    lines = text.splitlines() if twice else ()
    last = {name: number for number, line in enumerate(lines, 1) for name in _QUOTED.findall(line)}
    for name in dict.fromkeys(twice):
        place = (file, last.get(name))
        diagnostics.append(diagnostic("config-key-twice", place, severity=severity, name=name))
    return Parsed(DsConfig(values, file, key_lines(text)), diagnostics)


def strict(found: Diagnostic) -> Diagnostic:
    """Raise the severity of a diagnostic about Hjson to ``fails`` and return other diagnostics unchanged.

    This function is for files that transformers or accelerate reads, because these libraries accept only
    JSON.
    """
    return replace(found, severity="fails") if found.check == "config-not-json" else found


def parse_accelerate(text: str, file: str) -> Parsed:
    """Convert the YAML file for accelerate to the DeepSpeed configuration that the file describes.

    If the file does not configure DeepSpeed, ``config`` is ``None`` and there is no diagnostic.
    """
    try:
        values = require_bounded(yaml.load(text, LOADER))
        if not isinstance(values, dict):
            raise ValueError("no top-level keys")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else 1
        return Parsed(None, [diagnostic("config-unreadable-yaml", (file, line), reason=reason)])
    settings = values.get("deepspeed_config")
    if not isinstance(settings, dict):
        if "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values:
            # The file contains a DeepSpeed configuration, written as YAML.
            return Parsed(DsConfig(values, file, key_lines(text)), [])
        return Parsed(None, [])
    other = settings.get("deepspeed_config_file")
    config = _made(settings, values, file, key_lines(text))
    return Parsed(config, [], other if isinstance(other, str) and other != "none" else None)


def key_lines(text: str) -> dict[Path, int]:
    """Return a dictionary that maps the path of every key to the line number of the key.

    Return an empty dictionary if the text is not YAML. Most JSON is valid YAML.
    """
    if len(text) > MAX_PLACED:
        return {}
    try:
        root = yaml.compose(text.replace("\t", " "), Loader=LOADER)
    except (yaml.YAMLError, RecursionError):
        return {}
    lines: dict[Path, int] = {}
    nodes: list[tuple[Path, yaml.Node | None]] = [((), root)]
    # The list grows during the loop. Its size is limited because an alias can refer to an enclosing node.
    for path, node in nodes:
        if isinstance(node, yaml.MappingNode) and len(path) < MAX_DEPTH:
            for key, value in node.value[: MAX_KEYS - len(nodes)]:
                if isinstance(key, yaml.ScalarNode):
                    lines[(*path, key.value)] = key.start_mark.line + 1
                    nodes.append(((*path, key.value), value))
    return lines


def _hjson(text: str, file: str, error: ValueError, pairs: Any) -> tuple[dict[str, Any] | None, Diagnostic]:
    """Parse text as Hjson because it is not JSON. Return its values and a diagnostic about the text."""
    place, column = (file, getattr(error, "lineno", 1)), getattr(error, "colno", None)
    what = getattr(error, "msg", str(error))
    reason = what if column is None else message("lint.at-column", reason=what, column=column)
    try:
        values = without_surrogates(require_bounded(hjson.loads(text, object_pairs_hook=pairs)))
    except (ValueError, ArithmeticError, LookupError, RecursionError):
        # These are the exceptions that hjson raises for invalid tokens.
        values = None
    if not isinstance(values, dict) or not values:
        return None, diagnostic("config-unreadable", place, reason=reason, file=file)
    kind = "config-not-json-auto" if has_auto(values) else "config-not-json"
    return values, diagnostic(kind, place, reason=reason)


def _made(
    settings: Mapping[str, Any], values: Mapping[str, Any], file: str, lines: Mapping[Path, int]
) -> DsConfig:
    made: dict[str, Any] = {"zero_optimization": {"stage": _DEFAULT_STAGE}}
    places: dict[Path, int] = {}
    for name, target in _TARGETS.items():
        if name not in settings or settings[name] in ("none", None):
            continue
        parent = made
        for key in target[:-1]:
            parent = parent.setdefault(key, {})
        parent[target[-1]] = settings[name]
        if line := lines.get(("deepspeed_config", name)):
            places[target] = line
    precision, world = values.get("mixed_precision"), values.get("num_processes")
    if precision in ("bf16", "fp16"):
        made[precision] = {"enabled": True}
    if line := lines.get(("deepspeed_config",)):
        places["zero_optimization",] = line
    ranks = world if isinstance(world, int) else None
    return DsConfig(made, file, places, world_size=ranks, accelerate=True)
