"""Read pickles from other programs without unpickling them. They can be truncated, damaged, or forged.

The reader accepts only the opcodes of ``pickletools`` (pickletools.py in the Python standard library) that
create numbers, strings, lists, tuples, and dictionaries. torch writes such pickles (2.13,
torch/csrc/jit/serialization/pickler.cpp). An opcode that names a class, calls a function, or refers to an
external object is rejected before its argument is read.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any

from stallwatch_rules.text.foreign_json import require_bounded, without_surrogates

MOST_BYTES = 64 << 20
MOST_VALUES = 2_000_000  #: maximum number of values; a value to which the pickle refers twice counts twice
MOST_DEPTH = 64

_DATA = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_DICT", "SETITEM", "SETITEMS", "DICT"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    )
)
_ALLOWED = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes if opcode.name in _DATA}
_NAMES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_FEW = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEYS = (str, bytes, int, float, bool, type(None))  # types whose values are hashed directly


class PickleRefusedError(ValueError):
    """An error for a rejected pickle that is damaged, is too large, or contains more than plain data."""


def read_pickle(data: bytes) -> Any:
    """Return the value that a pickle contains.

    If the pickle is rejected, raise `PickleRefusedError` with the reason.
    """
    if len(data) > MOST_BYTES:
        raise PickleRefusedError(f"is larger than {MOST_BYTES >> 20} MiB")
    machine = _Machine(io.BytesIO(data))
    try:
        return require_bounded(machine.run(), MOST_VALUES, MOST_DEPTH)
    except RecursionError:
        why = "refers to itself, is nested too deeply, or contains too many values"
        raise PickleRefusedError(why) from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError):
        raise PickleRefusedError(f"is corrupt at byte {machine.stream.tell()}") from None


class _Machine:
    """The stack and the memo of the pickle that is being read."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.stream = stream
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stack before each open mark
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(MOST_VALUES):
            code = self.stream.read(1)
            opcode = _ALLOWED.get(code)
            if opcode is None:
                at = self.stream.tell() - len(code)
                if not code:
                    raise PickleRefusedError(f"is truncated at byte {at}")
                what = _NAMES.get(code, "an unknown opcode")
                raise PickleRefusedError(f"contains more than plain data: {what} at byte {at}")
            try:
                argument = opcode.arg.reader(self.stream) if opcode.arg is not None else None
            except (ValueError, UnicodeError):
                raise PickleRefusedError(f"is corrupt at byte {self.stream.tell()}") from None
            if opcode.name == "STOP":
                return self.stack.pop()
            self.step(opcode.name, argument)
        raise PickleRefusedError(f"contains more than {MOST_VALUES:,} values")

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name == "MARK":
            self.below.append(stack)
            self.stack = []
        elif name in ("APPEND", "SETITEM"):
            size = 1 if name == "APPEND" else 2
            items = stack[-size:]
            del stack[-size:]
            _add(stack[-1], items, name)
        elif name in ("APPENDS", "SETITEMS"):
            items = self.since_mark()
            _add(self.stack[-1], items, name)
        elif name in ("LIST", "DICT", "TUPLE"):
            items = self.since_mark()
            self.stack.append(_dict(items) if name == "DICT" else tuple(items) if name == "TUPLE" else items)
        elif name in _FEW:
            size = _FEW[name]
            items = stack[-size:]
            if len(items) < size:
                raise IndexError(name)
            stack[-size:] = [tuple(items)]
        elif name.startswith("EMPTY_"):
            stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[name]())
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name not in ("PROTO", "FRAME"):
            stack.append(without_surrogates(argument))

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items


def _add(container: Any, items: list[Any], name: str) -> None:
    if name.startswith("APPEND"):
        if type(container) is not list:
            raise TypeError(name)
        container += items
    else:
        if type(container) is not dict:
            raise TypeError(name)
        container.update(_dict(items))


def _dict(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2 or not all(isinstance(key, _KEYS) for key in items[::2]):
        raise TypeError("keys")
    return dict(zip(items[::2], items[1::2], strict=True))
