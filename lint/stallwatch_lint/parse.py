"""Text into a configuration, or what is wrong with the text, with its line.

DeepSpeed reads its file as Hjson (comments, trailing commas) and refuses a key that stands twice
(0.9.0 to 0.19.8, ``runtime/config.py``); transformers and accelerate read it as strict JSON first
(accelerate 1.15.0, ``utils/deepspeed.py``, ``HfDeepSpeedConfig``) and take the last of two equal keys.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import hjson
import yaml
from msgspec.structs import replace

from stallwatch_lint.diagnostic import Diagnostic, Words
from stallwatch_lint.dsconfig import DsConfig, Path, has_auto

_HJSON = "config-not-json"
_RULE = "deepspeed-config-invalid"
MAX_KEYS = 10_000  #: a few lines of YAML aliases can stand for billions
MAX_PLACED = 1 << 20  #: characters; finding the lines of keys takes seconds in longer texts


class Parsed(NamedTuple):
    """A configuration where the text holds one; ``other_file`` where it names one to read instead."""

    config: DsConfig | None
    diagnostics: list[Diagnostic]
    other_file: str | None = None


def parse_json(text: str, file: str) -> Parsed:
    """A DeepSpeed configuration in JSON or Hjson."""
    twice: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        twice.extend(sorted({name for name in names if names.count(name) > 1}))
        return dict(found)

    diagnostics: list[Diagnostic] = []
    try:
        values = json.loads(text, object_pairs_hook=pairs)
    except ValueError as error:  # also RecursionError's kin of absurd nesting is no configuration
        twice.clear()
        values, diagnostic = _hjson(text, file, error, pairs)
        diagnostics.append(diagnostic)
    except RecursionError:
        return Parsed(None, [_unreadable(file, 1, "nested too deeply", "嵌套过深")])
    if values is None:
        return Parsed(None, diagnostics)
    if not isinstance(values, dict):
        return Parsed(None, [_unreadable(file, 1, "no object at the top", "最外层不是对象")])
    diagnostics += [_twice(text, file, name, has_auto(values)) for name in dict.fromkeys(twice)]
    return Parsed(DsConfig(values, file, key_lines(text)), diagnostics)


def key_lines(text: str) -> dict[Path, int]:
    """The line of every key, by its path; nothing where the text is no YAML (JSON nearly always is)."""
    if len(text) > MAX_PLACED:
        return {}
    try:
        node = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return {}
    lines: dict[Path, int] = {}
    _walk(node, (), lines)
    return lines


def _walk(node: yaml.Node | None, path: Path, lines: dict[Path, int]) -> None:
    if not isinstance(node, yaml.MappingNode) or len(lines) >= MAX_KEYS:
        return
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            lines[(*path, key.value)] = key.start_mark.line + 1
            _walk(value, (*path, key.value), lines)


def strict(diagnostic: Diagnostic) -> Diagnostic:
    """What is said of Hjson where the run's script has transformers or accelerate read the file."""
    return replace(diagnostic, severity="fails") if diagnostic.check == _HJSON else diagnostic


def _hjson(text: str, file: str, error: ValueError, pairs: Any) -> tuple[Any, Diagnostic]:
    """What Hjson makes of it, and what to say of that."""
    line, column = getattr(error, "lineno", 1), getattr(error, "colno", None)
    reason = getattr(error, "msg", str(error))
    reason_zh = reason
    if column is not None:
        reason, reason_zh = f"{reason} (column {column})", f"{reason}（第 {column} 列）"
    try:
        values = hjson.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values:
        return None, _unreadable(file, line, reason, reason_zh)
    auto = has_auto(values)
    diagnostic = Diagnostic(
        _HJSON,
        "fails" if auto else "advice",
        Words(f"this is not JSON: {reason}", f"不是合法的 JSON：{reason_zh}"),
        Words(
            "DeepSpeed itself reads comments and trailing commas; transformers and accelerate, which alone"
            ' understand "auto", read strict JSON.',
            'DeepSpeed 自己能读注释和多余的逗号；而只有 transformers 和 accelerate 认识 "auto"，'
            "它们只读严格的 JSON。",
        )
        if auto
        else Words(
            "DeepSpeed itself reads comments and trailing commas; transformers and accelerate do not.",
            "DeepSpeed 自己能读注释和多余的逗号，transformers 和 accelerate 不能。",
        ),
        Words("Take comments and trailing commas out.", "去掉注释和多余的逗号。"),
        _RULE,
        file,
        line,
    )
    return values, diagnostic


def _unreadable(file: str, line: int, reason: str, reason_zh: str) -> Diagnostic:
    return Diagnostic(
        "config-unreadable",
        "fails",
        Words(f"this cannot be read as JSON: {reason}", f"无法按 JSON 读取：{reason_zh}"),
        Words("DeepSpeed stops before the first step.", "DeepSpeed 会在第一步之前停止。"),
        Words(
            f"Look at this line; python -m json.tool {file} shows the place.",
            f"检查这一行；python -m json.tool {file} 会指出位置。",
        ),
        _RULE,
        file,
        line,
    )


def _twice(text: str, file: str, name: str, auto: bool) -> Diagnostic:
    places = [n for n, line in enumerate(text.splitlines(), 1) if f'"{name}"' in line]
    return Diagnostic(
        "config-key-twice",
        "likely" if auto else "fails",
        Words(f"the key {name} stands twice in one object", f"键 {name} 在同一对象中出现了两次"),
        Words(
            "DeepSpeed refuses such a file; transformers and accelerate take the last of the two"
            " without a word.",
            "DeepSpeed 会拒绝这样的文件；transformers 和 accelerate 则不作声地取后一个。",
        ),
        Words("Keep one of them.", "只保留一个。"),
        _RULE,
        file,
        places[-1] if places else None,
    )
