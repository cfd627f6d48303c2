"""Jupyter's notebooks: what their cells printed, as the lines that they printed.

The form is nbformat 4's (https://nbformat.readthedocs.io/en/latest/format_description.html): the text of a
stream and of ``text/plain`` is a list of lines, an error holds its traceback with a terminal's colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stallwatch_exporter.files.wholefiles import lines_of_whole


def notebook_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The outputs of the cells in their order; what is not such a file is given as it is."""
    return lines_of_whole(chunks, _outputs)


def _outputs(notebook: Any) -> Iterator[bytes]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = _text(output)
            if text:
                yield text.encode("utf-8", "replace") + (b"" if text.endswith("\n") else b"\n")


def _text(output: dict[str, object]) -> str:
    """What one output says in words."""
    if output.get("output_type") == "error":
        lines = output.get("traceback") or [f"{output.get('ename')}: {output.get('evalue')}"]
        return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
    data = output.get("data")
    text = output.get("text") or (data.get("text/plain") if isinstance(data, dict) else None) or ""
    return "".join(map(str, text)) if isinstance(text, list) else str(text)
