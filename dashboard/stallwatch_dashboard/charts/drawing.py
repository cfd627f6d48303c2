"""A chart as plain dicts.

Plotly's graph objects check every key at every assignment, which takes tens of milliseconds a chart. Here
the tests check what is drawn against Plotly's schema instead.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

Json = dict[str, Any]


@dataclass
class Drawing:
    """Plotly's ``data`` and ``layout``. Numbers of traces are numpy arrays, which travel as their bytes."""

    data: list[Json] = field(default_factory=list)
    layout: Json = field(default_factory=dict)

    def add(self, **trace: Any) -> None:
        """Another trace."""
        self.data.append(trace)

    def set(self, part: str, **values: Any) -> None:
        """Change a part of the layout, such as ``xaxis``; what is not named stays."""
        self.layout[part] = {**self.layout.get(part, {}), **values}

    def to_json(self) -> str:
        """For ``Plotly.react``. Numbers that JSON has no name for are null outside arrays."""
        return msgspec.json.encode({"data": self.data, "layout": self.layout}, enc_hook=_bytes).decode()


def _bytes(array: object) -> Json:
    """An array as Plotly reads it since plotly.js 2.28 (plotly.py 5.24 has 2.35): base64 of its bytes."""
    if isinstance(array, np.generic):
        return array.item()  # type: ignore[no-any-return]
    if not isinstance(array, np.ndarray):
        raise TypeError(f"not for a chart: {type(array).__name__}")
    kind = array.dtype.newbyteorder("<")
    told = {"dtype": kind.str[1:], "bdata": base64.b64encode(array.astype(kind).tobytes()).decode()}
    return told if array.ndim == 1 else {**told, "shape": ", ".join(map(str, array.shape))}
