"""Check tensor files in bounded memory without unpickling the files.

A safetensors file (huggingface/safetensors, README) starts with the length of its header, in eight
little-endian bytes. The header follows as JSON of at most 100 MB. The rest of the file contains the tensors'
bytes, which have no gaps between them. This module does not use the safetensors library for three reasons.
The library is not always installed, it maps the whole file into memory, and it rejects an invalid file
without naming the invalid tensor.

``torch.save`` writes a zip archive with a pickle and a member for each storage. The pickle represents each
tensor as a call to ``torch._utils._rebuild_tensor_v2(storage, offset, size, stride, …)``. In this call, the
storage is a persistent ID ``("storage", type, key, location, numel)`` (torch 2.13, ``serialization.py``,
``_tensor.py``). In the opcodes of the pickle, the offset (an integer) follows ``BINPERSID``. The integers and
the tuple of the size follow the offset.
"""

from __future__ import annotations

import json
import math
import pickletools
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from stallwatch_rules.messages import Message, message
from stallwatch_rules.text.controls import printable
from stallwatch_rules.text.lazy import lazy

MAX_HEADER = 100_000_000
#: Maximum number of bytes in a pickle. A pickle contains only names and sizes. Other members of the archive
#: contain the values of the tensors.
MAX_PICKLE = 32 << 20
#: Number of bits per element, by data type (``safetensors/src/tensor.rs``, ``Dtype``, 0.6). Several
#: elements can share a byte.
_BITS = {
    "F4": 4,
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
_OURS = lazy(r"(?:pytorch_model|adapter_model|optimizer|scheduler|rng_state)\b.*|.*_states\.pt")
_MOST_DIMENSIONS = 64  # maximum number of dimensions that torch operators support
_ZIP = b"PK\x03\x04"
_PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))  # first bytes of a pickle by protocol
_LOCATION = lazy(r"storage|[a-z]+(?::\d+)?|\d+")  # strings in a persistent ID: "storage", device, and key
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE"}
_MEMO = {"BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"}
_NUMBERS = ("dp_world_size", "mp_world_size")
_UNREADABLE = (ValueError, NotImplementedError, RuntimeError, EOFError)  # errors that a damaged pickle causes


class Fault(msgspec.Struct, frozen=True):
    """A fault in a checkpoint file. ``kind`` is a stable identifier on which programs can rely."""

    path: Path
    kind: str
    what: Message
    rule: str = "checkpoint-archive-corrupt"
    fails: bool = True  #: ``False`` if the finding is worth reporting but might be intentional


def fault(path: Path, kind: str, message_name: str = "", **params: str | int) -> Fault:
    """Return a fault that has the message `message_name`. By default, the message is named after `kind`."""
    return Fault(path, kind, message(f"checkpoints.{message_name or kind}", **params))


def examples(names: list[str], most: int = 3) -> str:
    """Return a string that lists the first few names and states how many other names were omitted."""
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown} … (+{len(names) - most})" if len(names) > most else shown


def check_safetensors(path: Path) -> Iterator[Fault]:
    """Yield the faults in a safetensors file. Raises `OSError` if the file cannot be read."""
    try:
        tensors, held = _header(path)
    except _BadHeader as error:
        yield error.fault
        return
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
    end = max(ends)
    if wrong:
        yield fault(path, "lying-header", tensors=len(wrong), names=examples(wrong))
    if end > held:
        yield fault(path, "truncated", bytes=end - held)
    elif end < held and not wrong:
        yield fault(path, "lying-header", "bytes-of-no-tensor", bytes=held - end)
    empty = [name for name, entry in tensors.items() if isinstance(entry, dict) and entry.get("shape") == [0]]
    yield from _empty_tensors(path, empty, len(tensors))


def tensor_names(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file, or an empty set if its header cannot be read."""
    try:
        return set(_header(path)[0])
    except (OSError, _BadHeader):
        return set()


class _BadHeader(Exception):
    def __init__(self, path: Path, message_name: str, **params: int) -> None:
        super().__init__(message_name)
        self.fault = fault(path, "truncated", message_name, **params)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return two values: the header's entry for each tensor, and the number of bytes available to tensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise _BadHeader(path, "too-short", bytes=size)
        (length,) = struct.unpack("<Q", start)
        if length > MAX_HEADER or length > size - 8:
            raise _BadHeader(path, "header-too-long", length=length, left=size - 8)
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise _BadHeader(path, "header-no-json")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}, size - 8 - length


def _span(entry: Any) -> tuple[int, int] | None:
    """Return the start and the end of a tensor's bytes, or ``None`` if the header's entry is invalid."""
    if not isinstance(entry, dict):
        return None
    offsets, shape = entry.get("data_offsets"), entry.get("shape")
    if not isinstance(offsets, list) or not isinstance(shape, list) or len(offsets) != 2:
        return None
    sizes_are_valid = all(type(size) is int and 0 <= size < 2**63 for size in (*offsets, *shape))
    if not sizes_are_valid or len(shape) > _MOST_DIMENSIONS or offsets[0] > offsets[1]:
        return None
    return offsets[0], offsets[1]


def _empty_tensors(path: Path, empty: list[str], total: int) -> Iterator[Fault]:
    """Yield a fault for tensors that have shape [0].

    A ZeRO-3 parameter has this shape outside the forward pass of its module. A single empty buffer might be
    intentional. An empty weight or bias, or a file that is mostly empty, is a fault.
    """
    if empty:
        fails = len(empty) * 2 >= total or any(name.endswith(("weight", "bias")) for name in empty)
        what = message("checkpoints.empty-tensors", empty=len(empty), total=total, names=examples(empty))
        yield Fault(path, "empty-tensors", what, "zero3-empty-state-dict", fails)


def is_torch(path: Path) -> bool:
    """Return whether a file's name or first bytes show that torch wrote it.

    The extension alone is not sufficient because other programs also use ``.bin``. Raises `OSError` if the
    file is unreadable.
    """
    return _OURS.fullmatch(path.name) is not None or _start(path).startswith((_ZIP, *_PICKLE))


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def check_torch(path: Path, *, partitioned: bool = False) -> Iterator[Fault]:
    """Yield the faults in a torch file. Raises `OSError` if the file cannot be read.

    If `partitioned` is true, the file is one rank's part of a ZeRO-3 checkpoint. In such a file, parameters
    are empty by design. Versions of torch earlier than 1.6 wrote a bare pickle. Only the beginning of such a
    pickle is checked.
    """
    start = _start(path)
    if start.startswith(_PICKLE) or not is_torch(path):
        return
    if start != _ZIP:
        yield fault(path, "no-torch-file")
        return
    try:
        facts, members = _read(path)
    except zipfile.BadZipFile:
        yield fault(path, "truncated", "zip-cut")
        return
    except _UNREADABLE as error:
        yield fault(path, "pickle-unreadable", error=printable(str(error)))
        return
    if facts is None:
        return
    absent = sorted(facts.keys - members - {""})
    if absent and members:
        yield fault(path, "missing-storages", tensors=len(absent), names=examples(absent))
    if not partitioned:
        yield from _empty_tensors(path, facts.empty, facts.tensors)


class PickleFacts(msgspec.Struct):
    """Facts about tensors, storages, and world sizes, read from the pickle in a torch file."""

    tensors: int = 0
    empty: list[str] = []  #: names of tensors with shape [0], if the names are known
    keys: set[str] = set()  #: keys of the storages that the pickle references
    numbers: dict[str, int] = {}  #: world sizes that DeepSpeed recorded


def facts_of(path: Path) -> PickleFacts | None:
    """Return the facts in the pickle of a torch file, or ``None`` if the file cannot be read."""
    try:
        return _read(path)[0]
    except (OSError, zipfile.BadZipFile, *_UNREADABLE):
        return None


def _read(path: Path) -> tuple[PickleFacts | None, set[str]]:
    """Return two values: the facts in an archive's pickle, and the keys of the storages in the archive.

    The facts are ``None`` if the archive has no ``data.pkl``, or if its ``data.pkl`` is too large.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        keys = {member.filename.rpartition("/data/")[2] for member in members if "/data/" in member.filename}
        for member in members:
            if not member.filename.endswith("/data.pkl"):
                continue
            if member.file_size > MAX_PICKLE:
                return None, keys
            with archive.open(member) as file:
                return _pickle_facts(file), keys
    return None, set()


def _pickle_facts(file: IO[bytes]) -> PickleFacts:
    """Return the facts in a pickle. Raises `ValueError` if its opcodes are invalid or incomplete."""
    facts = PickleFacts()
    name, key, number_of = "", "", ""
    sizes: list[int] | None = None  # integers since the last storage: its offset, then the size of the tensor
    for opcode, argument in _opcodes(file):
        if isinstance(argument, str) and opcode.endswith("UNICODE"):
            if argument.isdigit():
                key = argument
            elif not _LOCATION.fullmatch(argument) or argument in _NUMBERS:
                name = argument
            number_of = argument if argument in _NUMBERS else ""
        elif opcode == "BINPERSID":
            facts.tensors += 1
            facts.keys.add(key)
            sizes = []
        elif opcode in _INTEGERS:
            if sizes is not None:
                sizes.append(argument)
            if number_of:
                facts.numbers.setdefault(number_of, argument)
        elif opcode in _TUPLES and sizes is not None:
            if sizes[1:] == [0]:
                facts.empty.append(name or "?")
            sizes = None
        elif opcode not in _MEMO and opcode != "MARK":
            sizes, number_of = None, ""
    return facts


def _opcodes(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    try:
        for opcode, argument, _ in pickletools.genops(file):
            yield opcode.name, argument
    except ValueError:
        raise
    except Exception as error:  # pickletools passes on any error that its decoders raise
        raise ValueError(str(error)) from error
