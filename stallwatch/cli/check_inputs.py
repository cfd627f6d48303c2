"""Read the inputs of ``stallwatch check``: configurations, scripts, and the versions of packages."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from stallwatch_exporter.settings import NO_CURRENT_FOLDER
from stallwatch_lint.batch import ranks_wanted
from stallwatch_lint.diagnostic import Diagnostic
from stallwatch_lint.dsconfig import DsConfig
from stallwatch_lint.newer_python import NewerPython
from stallwatch_lint.parse import Parsed, parse_accelerate, parse_json, strict
from stallwatch_lint.script import Script, parse_script
from stallwatch_lint.signatures import Source
from stallwatch_lint.versions import parse_versions

MAX_BYTES = 16 << 20
_YAML = (".yaml", ".yml")
KINDS = (".py", ".json", ".hjson", *_YAML)


@dataclass
class Inputs:
    """The parsed inputs that the command line names, and the problems that were found while reading them."""

    configs: list[DsConfig] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)  #: readable files that cannot be parsed
    problems: list[str] = field(default_factory=list)  #: problems with files that cannot be read
    looked_at: list[str] = field(default_factory=list)

    def read_versions(self, python: str | None, file: Path | None) -> dict[str, str]:
        """Return the package versions from a file, another Python, or this Python.

        If the versions are unknown, return an empty dict.
        """
        try:
            if file is not None:
                versions, where = versions_in_file(file), str(file)
            elif python is not None:
                versions, where = versions_of_python(python), python
            else:
                versions, where = versions_here(), "this Python"
        except EnvironmentUnknown as error:
            self.problems.append(str(error))
            return {}
        stack = [name for name in ("deepspeed", "torch", "transformers", "trl") if name in versions]
        if stack:
            self.looked_at.append(f"{', '.join(f'{name} {versions[name]}' for name in stack)} ({where})")
        return versions


def read_inputs(files: Iterable[Path]) -> Inputs:
    """Read configurations (``.json`` or ``.yaml``) and scripts (``.py``)."""
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
        parsed = _other_file(file, parsed, inputs)
    inputs.diagnostics += parsed.diagnostics
    if parsed.config is not None:
        inputs.configs.append(parsed.config)
        inputs.looked_at.append(_about(parsed.config))
    elif yaml and "distributed_type" in text:
        inputs.looked_at.append(f"{file} (no DeepSpeed)")
    elif not parsed.diagnostics:
        inputs.problems.append(
            f"{file}: no deepspeed_config found; specify accelerate's or DeepSpeed's configuration file"
        )


def _other_file(file: Path, parsed: Parsed, inputs: Inputs) -> Parsed:
    """Read the file that ``deepspeed_config_file`` names. Its path can be relative to accelerate's file."""
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
                f"{file}: the file is larger than {MAX_BYTES >> 20} MiB; specify a configuration or a script"
            )
            return None
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        inputs.problems.append(f"{file}: cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        inputs.problems.append(f"{file}: the file is not UTF-8 text; save the file as UTF-8")
    return None


#: Packages that Stallwatch has checks for. Other packages are ignored.
PACKAGES = (
    "accelerate",
    "deepspeed",
    "huggingface-hub",
    "numpy",
    "peft",
    "pydantic",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
)
_SECONDS = 60
_LIST_VERSIONS = """
import importlib.metadata, json
print(json.dumps([[d.metadata["Name"], d.version] for d in importlib.metadata.distributions()]))
"""
_FIND = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: spec.origin for name, spec in found.items() if spec and spec.origin}))
"""
SOURCES = ("transformers", "trl")  #: packages whose classes are read from their source code


class EnvironmentUnknown(Exception):
    """Raised if the package versions could not be determined. The message explains what to do."""


def versions_here() -> dict[str, str]:
    """Return the versions of the packages that are installed for this Python."""
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def versions_of_python(python: str) -> dict[str, str]:
    """Return the versions of the packages that are installed for another Python. No package is imported."""
    try:
        return _known((str(name), str(version)) for name, version in _answer(python, _LIST_VERSIONS))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        raise EnvironmentUnknown(
            f"--python {python}: not a working Python interpreter ({error}); specify the path of a Python"
        ) from error


def _answer(python: str, program: str, *arguments: str) -> Any:
    """Run a short program in another Python and return the JSON in the last line of its output."""
    answer = subprocess.run(
        [python, "-c", NO_CURRENT_FOLDER + program, *arguments],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return json.loads(answer.stdout.strip().splitlines()[-1])


def sources_of(python: str | None) -> Callable[[str], Source | None]:
    """Return a function that returns the source code of a module in one of the ``SOURCES`` packages.

    The packages are installed for the interpreter `python`, by default for this interpreter.
    """
    origins: dict[str, str] = {}
    if python is None:
        for name in SOURCES:
            spec = importlib.util.find_spec(name)  # for a top-level package, this imports nothing
            if spec is not None and spec.origin:
                origins[name] = spec.origin
    else:
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
            origins = _answer(python, _FIND, *SOURCES)

    def read(module: str) -> Source | None:
        top, *below = module.split(".")
        if top not in origins:
            return None
        path = Path(origins[top]).parent.joinpath(*below)
        for file, package in ((path / "__init__.py", True), (path.with_name(f"{path.name}.py"), False)):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                return Source(file.read_text(encoding="utf-8"), package)
        return None

    return read


def versions_in_file(path: Path) -> dict[str, str]:
    """Return the exact versions in a ``requirements.txt`` or in the output of ``pip freeze``."""
    try:
        found = _known(parse_versions(path.read_text(encoding="utf-8-sig")).items())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise EnvironmentUnknown(f"--versions {path}: cannot be read: {reason}") from error
    if not found:
        raise EnvironmentUnknown(
            f"--versions {path}: the file pins none of {', '.join(PACKAGES)}; use the output of pip freeze"
        )
    return found


def _known(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    named = ((canonicalize_name(name), version) for name, version in pairs)
    return {name: version for name, version in named if name in PACKAGES}
