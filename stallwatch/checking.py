"""Files into what the checks take: configurations and scripts, with what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from stallwatch_lint.batch import ranks_wanted
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.newer_python import NewerPython
from stallwatch_lint.parse import Parsed, parse_accelerate, parse_json, strict
from stallwatch_lint.script import Script, parse_script

MAX_BYTES = 16 << 20
_YAML = (".yaml", ".yml")
KINDS = (".py", ".json", ".hjson", *_YAML)


@dataclass
class Inputs:
    """What was named on the command line, read."""

    configs: list[DsConfig] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)  #: on what could be read, but not parsed
    problems: list[str] = field(default_factory=list)  #: on what could not be read
    looked_at: list[str] = field(default_factory=list)


def read_inputs(files: Iterable[Path]) -> Inputs:
    """Read configurations (``.json``, ``.yaml``) and scripts (``.py``)."""
    inputs = Inputs()
    for file in files:
        text = _text(file, inputs)
        if text is None:
            continue
        if file.suffix == ".py":
            try:
                script = parse_script(text, str(file))
            except NewerPython as error:
                inputs.problems.append(str(error))
                continue
            if isinstance(script, Script):
                inputs.scripts.append(script)
            else:
                inputs.diagnostics.append(script)
            inputs.looked_at.append(str(file))
        else:
            _config(file, text, inputs)
    if any(script.strict_json for script in inputs.scripts):
        inputs.diagnostics = [strict(diagnostic) for diagnostic in inputs.diagnostics]
    return inputs


def _config(file: Path, text: str, inputs: Inputs) -> None:
    yaml = file.suffix in _YAML
    parsed = parse_accelerate(text, str(file)) if yaml else parse_json(text, str(file))
    if parsed.other_file is not None:
        parsed = _other(file, parsed, inputs)
    inputs.diagnostics += parsed.diagnostics
    if parsed.config is not None:
        inputs.configs.append(parsed.config)
        inputs.looked_at.append(_about(parsed.config))
    elif yaml and "distributed_type" in text:
        inputs.looked_at.append(f"{file} (no DeepSpeed)")
    elif not parsed.diagnostics:
        inputs.problems.append(
            f"{file}: holds no deepspeed_config; name accelerate's configuration or DeepSpeed's own"
        )


def _other(file: Path, parsed: Parsed, inputs: Inputs) -> Parsed:
    """The file that accelerate's ``deepspeed_config_file`` names: as it stands, or beside its own."""
    named = Path(parsed.other_file or "")
    there = next((path for path in (named, file.parent / named) if path.is_file()), named)
    text = _text(there, inputs)
    if text is None:
        return Parsed(None, [])
    found = parse_json(text, str(there))
    if found.config is None or parsed.config is None:
        return found
    return Parsed(replace(found.config, world_size=parsed.config.world_size), found.diagnostics)


def _about(config: DsConfig) -> str:
    about = [f"ZeRO-{config.stage}"] if config.stage else []
    if ranks := ranks_wanted(config):
        about.append(f"{ranks} ranks")
    return f"{config.file} ({', '.join(about)})" if about else config.file


def _text(file: Path, inputs: Inputs) -> str | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            inputs.problems.append(
                f"{file}: larger than {MAX_BYTES >> 20} MiB; this is no configuration or script"
            )
            return None
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        inputs.problems.append(f"{file}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        inputs.problems.append(f"{file}: is no UTF-8 text; save it as UTF-8")
    return None
