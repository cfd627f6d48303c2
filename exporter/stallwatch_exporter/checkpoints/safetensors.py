"""safetensors files: their headers, checked against the file's length.

The format (huggingface/safetensors, README): eight bytes with the header's length, little-endian; the header,
JSON, at most 100 MB; then the tensors' bytes without holes. The header is read here and not with the library:
the library refuses a wrong file without saying which tensor is wrong, maps the whole file, and is not there
where only checkpoints are looked at.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stallwatch_exporter.checkpoints.faults import Fault, empty_tensors, examples

MAX_HEADER = 100_000_000
#: bits of an element (``safetensors/src/tensor.rs``, ``Dtype``, 0.6): several share a byte
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


def check_safetensors(path: Path) -> Iterator[Fault]:
    """Faults of one file; ``OSError`` where it cannot be read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            yield _cut(
                path,
                f"{size} bytes: too short for a safetensors file",
                f"仅 {size} 字节，不足以是 safetensors 文件",
            )
            return
        (length,) = struct.unpack("<Q", start)
        if length > MAX_HEADER or length > size - 8:
            yield _cut(
                path,
                f"the header is to be {length} bytes long, the file has {size - 8} left",
                f"文件头声称 {length} 字节，而文件只剩 {size - 8} 字节",
            )
            return
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        yield _cut(path, "the header is no JSON object", "文件头不是 JSON 对象")
        return
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    yield from _lengths(path, tensors, size - 8 - length)
    yield from empty_tensors(
        path, [name for name, entry in tensors.items() if _is_empty(entry)], len(tensors)
    )


def tensor_names(path: Path) -> set[str]:
    """The tensors in a file; empty where its header cannot be read."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length)) if length <= MAX_HEADER else {}
    except (OSError, ValueError, RecursionError, struct.error):
        return set()
    return {name for name in header if name != "__metadata__"} if isinstance(header, dict) else set()


def _lengths(path: Path, tensors: dict[str, Any], room: int) -> Iterator[Fault]:
    """Offsets beyond the file, and tensors whose shape needs another number of bytes."""
    ends, wrong = [0], []
    for name, entry in tensors.items():
        span = _span(entry)
        if span is None:
            wrong.append(name)
            continue
        ends.append(span[1])
        bits = _BITS.get(str(entry.get("dtype")))
        if bits is not None and (math.prod(entry["shape"]) * bits + 7) // 8 != span[1] - span[0]:
            wrong.append(name)
    if wrong:
        yield Fault(
            path,
            "lying-header",
            f"the header contradicts itself on {len(wrong)} tensors: {examples(wrong)}",
            f"文件头对 {len(wrong)} 个张量的描述自相矛盾：{examples(wrong)}",
        )
    if max(ends) > room:
        yield _cut(
            path,
            f"cut short: {max(ends) - room} bytes are missing at the end",
            f"文件被截断：末尾缺少 {max(ends) - room} 字节",
        )
    elif max(ends) < room and not wrong:
        yield Fault(
            path,
            "lying-header",
            f"{room - max(ends)} bytes at the end belong to no tensor",
            f"末尾有 {room - max(ends)} 字节不属于任何张量",
        )


def _span(entry: Any) -> tuple[int, int] | None:
    if not isinstance(entry, dict):
        return None
    offsets, shape = entry.get("data_offsets"), entry.get("shape")
    if not isinstance(offsets, list) or not isinstance(shape, list) or len(offsets) != 2:
        return None
    if not all(type(one) is int and one >= 0 for one in (*offsets, *shape)) or offsets[0] > offsets[1]:
        return None
    return offsets[0], offsets[1]


def _is_empty(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("shape") == [0]


def _cut(path: Path, what: str, what_zh: str) -> Fault:
    return Fault(path, "truncated", what, what_zh)
