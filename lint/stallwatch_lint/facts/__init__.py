"""Facts about other software, as data files: each says where it was read."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

_HERE = Path(__file__).parent


def facts(name: str, type: type[T]) -> T:
    """Return what `<name>.yaml` holds."""
    return msgspec.yaml.decode((_HERE / f"{name}.yaml").read_bytes(), type=type)
