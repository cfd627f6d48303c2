"""Public names of a checkout: ``python tests/release_0_1/public_names.py CHECKOUT`` prints them as JSON.

`names.json` is what it printed of release 0.1 (commit e508561), with that checkout on `PYTHONPATH`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ROW = re.compile(r"^\| `(stallwatch_\w+)` \| \w+[^|]*\|(?: ([^|]*) \|)?", re.MULTILINE)
_WEBHOOK = re.compile(r"receive a POST with this body:\n\n((?:\|.*\n)+)")
_SAMPLES = re.compile(r"## (?:The columns|Columns)\n\n((?:\|.*\n)+)")
_CELL = re.compile(r"`(\w+)`")


def public_names(root: Path) -> dict[str, list[str]]:
    """Return the names by kind."""
    return {
        kind: sorted(set(names))
        for kind, names in {
            "command": _commands(),
            "key": _keys(),
            "variable": _variables(),
            "metric": _metrics(root),
            "alert": _alerts(root),
            "rule": _rules(root),
            "front matter": _front_matter(),
            "json": _fields(_module("stallwatch_rules.records").Diagnosis, "report"),
            "webhook": _cells(root / "docs" / "alerts.md", _WEBHOOK),
            "column": _cells(root / "docs" / "samples.md", _SAMPLES),
            "python": _python(),
            "value": _values(),
            "extra": _extras(root),
            "compose": _compose(root),
            "file": _files(root),
        }.items()
    }


def _module(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return import_module(name)
        except ImportError:
            continue
    return import_module(names[-1])


def _commands() -> Iterator[str]:
    def walk(command: click.Command, path: str) -> Iterator[str]:
        yield path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield from (f"{path} {name}" for name in [*parameter.opts, *parameter.secondary_opts])
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from walk(inner, f"{path} {name}")

    return walk(_module("stallwatch.cli").cli, "stallwatch")


def _config_keys() -> tuple[Any, ...]:
    keys: tuple[Any, ...] = _module("stallwatch.config.keys", "stallwatch.config_keys").KEYS
    return keys


def _keys() -> Iterator[str]:
    for key in _config_keys():
        yield key.full_name
        yield f"{key.full_name} = {json.dumps(key.default, default=str)}"
        yield from (f"{key.full_name}: {choice}" for choice in key.choices)


def _variables() -> Iterator[str]:
    for key in _config_keys():
        yield key.variable
        if key.secret:
            yield f"{key.variable}_FILE"
    yield from _module("stallwatch.config.loading", "stallwatch.config")._OTHER_VARIABLES
    yield "STALLWATCH_CACHE"


def _metrics(root: Path) -> Iterator[str]:
    for page in root.glob("docs/**/*.md"):
        for name, labels in _ROW.findall(page.read_text()):
            yield name
            if page.stem == "metrics":
                plain = labels.replace("`", "")
                yield from (f"{name}{{{label}}}" for label in re.split(r", | and ", plain) if label.strip())


def _alerts(root: Path) -> Iterator[str]:
    for file in (root / "rules" / "prometheus").glob("*.yml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                name = rule.get("alert") or rule["record"]
                yield name
                yield from (f"{name}: label {label}" for label in rule.get("labels", ()))
                yield from (f"{name}: annotation {item}" for item in rule.get("annotations", ()))


def _rules(root: Path) -> Iterator[str]:
    catalogue = _module("stallwatch_rules.pages.catalogue").load_catalogue()
    for page in catalogue.pages.values():
        yield page.id
        yield f"{page.id}: family {page.family}"
    incident = _module("stallwatch_exporter.incident")
    yield from (incident.RANK_GONE, incident.UNKNOWN_FAILURE)


def _front_matter() -> Iterator[str]:
    pages = _module("stallwatch_rules.pages.page")
    front = getattr(pages, "_PageFront", None) or pages._Front
    yield from _fields(front, "page")


def _fields(kind: Any, path: str, above: tuple[Any, ...] = ()) -> Iterator[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in above:
        for field in msgspec.structs.fields(kind):
            yield f"{path}.{field.encode_name}"
            yield from _fields(field.type, f"{path}.{field.encode_name}", (*above, kind))
    for part in get_args(kind):
        yield from _fields(part, path, above)


def _cells(page: Path, table: re.Pattern[str]) -> Iterator[str]:
    found = table.search(page.read_text())
    assert found is not None, page
    for row in found[1].splitlines()[2:]:
        yield from _CELL.findall(row.split("|")[1])


def _python() -> Iterator[str]:
    module = _module("stallwatch")
    for name in module.__all__:
        value = getattr(module, name)
        yield f"stallwatch.{name}"
        if callable(value) and name != "Diagnosis":
            yield from (
                f"stallwatch.{name}({parameter})" for parameter in inspect.signature(value).parameters
            )
    run = _module("stallwatch.integrations.loop").TrainingRun
    for name, method in inspect.getmembers(run, inspect.isfunction):
        if not name.startswith("_"):
            yield from (
                f"TrainingRun.{name}({parameter})" for parameter in inspect.signature(method).parameters
            )


def _values() -> Iterator[str]:
    records = _module("stallwatch_rules.records")
    incident = _module("stallwatch_exporter.incident")
    ending = msgspec.structs.fields(incident.Ending)[0].type
    for kind, values in {
        "verdict": records.Verdict,
        "phase": records.Phase,
        "role": records.Role,
        "harm": records.Harm,
        "severity": incident.Severity,
        "status": incident.Status,
        "resolution": incident.Resolution,
        "ending": ending,
    }.items():
        yield from (f"{kind} {value}" for value in get_args(values))


def _extras(root: Path) -> Iterator[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    yield from project["optional-dependencies"]
    yield from project["scripts"]


def _compose(root: Path) -> Iterator[str]:
    text = (root / "docker-compose.yml").read_text()
    compose = yaml.safe_load(text)
    yield from (f"service {name}" for name in compose["services"])
    yield from (f"volume {name}" for name in compose.get("volumes") or ())
    yield from (f"variable {name}" for name in re.findall(r"\$\{([A-Z_]+)", text))


def _files(root: Path) -> Iterator[str]:
    for name in ("docker-compose.yml", "rules/prometheus/*.yml", "docs/compose/**/*", "**/Dockerfile"):
        yield from (str(file.relative_to(root)) for file in root.glob(name) if file.is_file())


if __name__ == "__main__":
    json.dump(public_names(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
