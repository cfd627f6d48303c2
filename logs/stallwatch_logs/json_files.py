"""Convert JSON files that contain the lines of a log. Each file is read completely before its conversion.

* Jupyter notebooks: the outputs of their cells become printed lines. In the format, nbformat 4
  (https://nbformat.readthedocs.io/en/latest/format_description.html), the text of a stream and of
  ``text/plain`` is a list of lines, and an error contains a traceback with terminal colors.
* ``trainer_state.json`` of transformers: its history becomes the lines that the trainer had logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LARGEST = 64 * 1024**2
#: Maximum number of values, enough for 300,000 entries. An empty list needs 30 times the memory of its
#: text.
_MOST_VALUES = 2_000_000
_OTHERWISE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def notebook_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the outputs of a notebook's cells in order. A file in a different format is not changed."""
    return _lines_of_whole(chunks, _outputs)


def trainer_state_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield a JSON line for each entry of the history. A file in a different format is not changed."""
    return _lines_of_whole(chunks, _history)


def _lines_of_whole(chunks: Iterator[bytes], lines_in: Callable[[Any], Iterable[bytes]]) -> Iterator[bytes]:
    """Parse the JSON in a file and yield the lines that `lines_in` finds in the parsed value.

    A file that is too large or has a different format is not changed.
    """
    held = bytearray()
    for chunk in chunks:
        held += chunk
        if len(held) > _LARGEST:
            yield bytes(held)
            yield from chunks
            return
    try:
        if sum(map(held.count, b",[{")) > _MOST_VALUES:
            raise ValueError("too many values")
        lines = list(lines_in(json.loads(held)))
    except _OTHERWISE:
        yield bytes(held)
        return
    yield from lines


def _outputs(notebook: Any) -> Iterator[bytes]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = _text(output)
            if text:
                yield text.encode("utf-8", "replace") + (b"" if text.endswith("\n") else b"\n")


def _text(output: dict[str, object]) -> str:
    """Return the text in an output of a notebook cell."""
    if output.get("output_type") == "error":
        lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
        return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
    data = output.get("data")
    text = output.get("text") or (data.get("text/plain") if isinstance(data, dict) else None) or ""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _history(state: Any) -> Iterator[bytes]:
    total = state.get("max_steps")
    known = type(total) is int and 0 <= total < 2**63
    for entry in state["log_history"]:
        if isinstance(entry, dict):
            shown = entry | {"max_steps": entry.get("max_steps", total)} if known else entry
            yield json.dumps(shown).encode() + b"\n"
