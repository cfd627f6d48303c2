"""Which framework a log is of, by what it prints and whose code its tracebacks show: ``frameworks.json``.

The first whose pattern is found counts: a trainer that samples with vLLM is that trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec


class Framework(msgspec.Struct, frozen=True):
    """A framework by the name that conditions of fixes use."""

    id: str
    name: str  #: as people write it
    words: tuple[str, ...]  #: one of them stands in what the pattern finds
    pattern: str  #: of its own lines, and of the paths of its code, with slashes


_listed = msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Framework, ...])
FRAMEWORKS: Mapping[str, Framework] = {one.id: one for one in _listed}


def framework_of(text: str) -> str:
    """Return the framework of a log by its lines and the paths of its frames; empty if none is known."""
    text = text.replace("\\", "/")
    return next(
        (
            one.id
            for one in _listed
            if any(word in text for word in one.words) and re.search(one.pattern, text, re.MULTILINE)
        ),
        "",
    )
