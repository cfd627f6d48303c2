"""What is wrong with a file of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec


class Fault(msgspec.Struct, frozen=True):
    """One fault: ``kind`` is stable, for programs; ``what`` and ``what_zh`` say it in words."""

    path: Path
    kind: str
    what: str
    what_zh: str
    rule: str = "checkpoint-archive-corrupt"
    fails: bool = True  #: ``False``: worth knowing, but what is there may be meant so


def examples(names: list[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} … (+{len(names) - most})" if len(names) > most else shown


def empty_tensors(path: Path, empty: list[str], total: int) -> Iterator[Fault]:
    """Tensors of shape [0]: what a ZeRO-3 parameter is outside of its module's forward.

    A lone empty buffer may be meant; an empty weight or bias, or a file that is mostly empty, is not.
    """
    if empty:
        yield Fault(
            path,
            "empty-tensors",
            f"{len(empty)} of {total} tensors are empty: {examples(empty)}",
            f"{total} 个张量中有 {len(empty)} 个是空的：{examples(empty)}",
            rule="zero3-empty-state-dict",
            fails=len(empty) * 2 >= total or any(name.endswith(("weight", "bias")) for name in empty),
        )
