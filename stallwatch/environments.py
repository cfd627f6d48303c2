"""Which versions of the training stack a Python has, or a file declares."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from stallwatch_lint.signatures import Source
from stallwatch_lint.versions import parse_versions

#: those that the checks know something of; no others are looked at
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
_ASK = """
import importlib.metadata, json
print(json.dumps([[d.metadata["Name"], d.version] for d in importlib.metadata.distributions()]))
"""
_FIND = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: one.origin for name, one in found.items() if one and one.origin}))
"""
SOURCES = ("transformers", "trl")  #: whose classes are looked up in their source


class EnvironmentUnknown(Exception):
    """The versions could not be found out; the message says what to do."""


def versions_here() -> dict[str, str]:
    """Of the Python that runs Stallwatch."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def versions_of_python(python: str) -> dict[str, str]:
    """Of another Python: it is started and asked for its metadata; nothing of the stack is imported."""
    try:
        return _known((str(name), str(version)) for name, version in _answer(python, _ASK))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        raise EnvironmentUnknown(
            f"--python {python}: does not answer as a Python ({error}); name its executable"
        ) from error


def _answer(python: str, program: str, *arguments: str) -> Any:
    """What a short program prints as JSON in its last line, run by that Python."""
    answer = subprocess.run(
        [python, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return json.loads(answer.stdout.strip().splitlines()[-1])


def sources_of(python: str | None) -> Callable[[str], Source | None]:
    """What reads the modules of ``SOURCES`` as they are installed, here or in another Python."""
    origins: dict[str, str] = {}
    if python is None:
        for name in SOURCES:
            spec = importlib.util.find_spec(name)  # of a package at the top: nothing is imported
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
    """Of a ``requirements.txt`` or the output of ``pip freeze``; only exact pins count."""
    try:
        found = _known(parse_versions(path.read_text(encoding="utf-8-sig")).items())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise EnvironmentUnknown(f"--versions {path}: cannot be read: {reason}") from error
    if not found:
        raise EnvironmentUnknown(
            f"--versions {path}: pins none of {', '.join(PACKAGES)}; hand over the output of pip freeze"
        )
    return found


def _known(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    named = ((canonicalize_name(name), version) for name, version in pairs)
    return {name: version for name, version in named if name in PACKAGES}
