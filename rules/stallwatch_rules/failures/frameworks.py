"""From the text of a log and the files in its tracebacks, detect which framework printed the log.

``frameworks.json`` lists the frameworks. A file path identifies a framework only if it occurs in a traceback,
because a framework that is only imported can also print warnings. The path must also belong to an installed
or cloned copy of the framework, because a user's folder can have the name of a framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec


class Framework(msgspec.Struct, frozen=True):
    """A training framework. The conditions of fixes refer to it by its ``id``."""

    id: str
    name: str  #: usual spelling of the name
    code: tuple[str, ...]  #: path prefixes of the framework's files, relative to the installation folder
    words: tuple[str, ...]  #: every match of ``pattern`` contains at least one of these words
    pattern: str  #: regular expression for lines that the framework prints
    #: True if trainers also use the framework. A log with output of both is attributed to the trainer.
    engine: bool = False

    def runs(self, path: str) -> bool:
        """Return whether a file belongs to an installed or cloned copy of the framework.

        A clone is recognized by the name of its folder.
        """
        for code in self.code:
            package = re.escape(code.partition("/")[0])
            clone = rf"(?i:[^/]*{package}[^/]*(?:/src)?|llama-?factory/src)"
            folder = rf"/(?:(?:site|dist)-packages|{clone})/{re.escape(code)}"
            if code in path and re.search(folder, path):
                return True
        return False

    def printed(self, text: str) -> bool:
        """Return whether a line of the text is known output of the framework."""
        words = any(word in text for word in self.words)
        return words and re.search(self.pattern, text, re.MULTILINE) is not None


_listed = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Framework, ...])
FRAMEWORKS: Mapping[str, Framework] = {framework.id: framework for framework in _listed}


def framework_of(text: str, failed: Iterable[str] = (), others: Iterable[str] = ()) -> str:
    """Return the framework that printed a log, or an empty string if it is unknown.

    Frames of the failure have priority over printed lines, and printed lines have priority over other
    tracebacks. If several frameworks match at the same priority, the first framework in ``frameworks.json``
    is returned. The log of a trainer that samples with vLLM is attributed to the trainer, not to vLLM.
    """
    printed = (framework for framework in _listed if framework.printed(text))
    found = [*_of_code(failed), *printed, *_of_code(others)]
    return next((framework.id for framework in sorted(found, key=lambda framework: framework.engine)), "")


def _of_code(paths: Iterable[str]) -> Iterator[Framework]:
    known = {path.replace("\\", "/") for path in paths}
    return (framework for framework in _listed if any(map(framework.runs, known)))
