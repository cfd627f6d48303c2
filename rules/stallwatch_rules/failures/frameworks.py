"""Detect which training framework printed a log, from the files in its tracebacks and from its output.

``frameworks.json`` lists the frameworks. A user's folder can be named like a framework, and a framework that
is only imported can print warnings. Therefore, code counts only if it is installed or cloned, and only in
tracebacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec


class Framework(msgspec.Struct, frozen=True):
    """A training framework; conditions of fixes refer to it by its name."""

    id: str
    name: str  #: usual spelling of the name
    code: tuple[str, ...]  #: path prefixes of the framework's files, below the installation folder
    words: tuple[str, ...]  #: words of which every match of ``pattern`` contains one
    pattern: str  #: expression for the framework's own lines
    engine: bool = False  #: True if trainers also use the framework: a log of both belongs to the trainer

    def runs(self, path: str) -> bool:
        """Return whether a file is code of the framework: installed, or in a clone with the same name."""
        for code in self.code:
            package = re.escape(code.partition("/")[0])
            clone = rf"(?i:[^/]*{package}[^/]*(?:/src)?|llama-?factory/src)"
            folder = rf"/(?:(?:site|dist)-packages|{clone})/{re.escape(code)}"
            if code in path and re.search(folder, path):
                return True
        return False

    def printed(self, text: str) -> bool:
        """Return whether one of the lines of a text is known output of the framework."""
        words = any(word in text for word in self.words)
        return words and re.search(self.pattern, text, re.MULTILINE) is not None


_listed = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Framework, ...])
FRAMEWORKS: Mapping[str, Framework] = {framework.id: framework for framework in _listed}


def framework_of(text: str, failed: Iterable[str] = (), others: Iterable[str] = ()) -> str:
    """Return the framework of a log, from its lines and the files in its tracebacks; empty if unknown.

    The frames of the failure have priority, then the output, then other tracebacks. If one of these names
    several frameworks, the first in the table is returned. The log of a trainer that samples with vLLM
    belongs to the trainer, not to vLLM.
    """
    printed = (framework for framework in _listed if framework.printed(text))
    found = [*_of_code(failed), *printed, *_of_code(others)]
    return next((framework.id for framework in sorted(found, key=lambda framework: framework.engine)), "")


def _of_code(paths: Iterable[str]) -> Iterator[Framework]:
    known = {path.replace("\\", "/") for path in paths}
    return (framework for framework in _listed if any(map(framework.runs, known)))
