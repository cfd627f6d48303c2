"""What the pickle inside a torch file says of its tensors, told by its opcodes: nothing is ever unpickled.

``torch.save`` writes a tensor as a call of ``torch._utils._rebuild_tensor_v2(storage, offset, size,
stride, …)``, where the storage is a persistent id ``("storage", type, key, location, numel)`` (torch 2.13,
``serialization.py``,
``_tensor.py``). In opcodes: ``BINPERSID``, an integer, then the integers and the tuple of the size.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from typing import IO, Any

import msgspec

from stallwatch_rules.text.lazy import lazy

_LOCATION = lazy(r"storage|[a-z]+(?::\d+)?|\d+")  # strings of the persistent id: kind, device, key
_INTEGERS = {"BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_TUPLE"}
_MEMO = {"BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE"}
_NUMBERS = ("dp_world_size", "mp_world_size")


class PickleFacts(msgspec.Struct):
    """What was found in one pickle."""

    tensors: int = 0
    empty: list[str] = []  #: names of tensors of shape [0], as far as they can be told
    keys: set[str] = set()  #: of the storages that are referred to
    numbers: dict[str, int] = {}  #: DeepSpeed's world sizes


def pickle_facts(file: IO[bytes]) -> PickleFacts:
    """Read one pickle's opcodes to the end; ``ValueError`` where they are none or break off."""
    facts = PickleFacts()
    name, key, number_of = "", "", ""
    sizes: list[int] | None = None  # the integers since the last storage: its offset, then the tensor's size
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
    except Exception as error:  # pickletools raises whatever its decoders do
        raise ValueError(str(error)) from error
