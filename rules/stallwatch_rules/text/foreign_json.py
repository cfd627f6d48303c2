"""Read JSON from other programs. The JSON can be truncated, damaged, or forged."""

from __future__ import annotations

import json
from typing import Any

import msgspec

#: Errors that decoders raise for bytes that are not valid JSON. Such bytes have the wrong form, are not
#: UTF-8, or are nested too deeply.
NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
MAX_DEPTH = 100  #: maximum nesting of containers; it also limits the recursion of functions that process them
MAX_VALUES = 100_000  #: maximum number of values; a few YAML aliases can expand to billions of values
_LONGEST_WHOLE = 20  # maximum number of characters of a 64-bit integer


def read_json(data: str | bytes) -> Any:
    """Return the value that the text contains. Raise `ValueError` if the text is not JSON.

    Whole numbers that do not fit in 64 bits become floats (or infinity), so that arithmetic does not fail.
    Lone surrogates, which cannot be encoded, become question marks.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        found = json.loads(text, parse_int=_whole)
        return without_surrogates(found) if "\\u" in text else found
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(digits: str) -> int | float:
    whole = int(digits) if len(digits) <= _LONGEST_WHOLE else None
    return whole if whole is not None and -(2**63) <= whole < 2**64 else float(digits)


def without_surrogates(value: Any) -> Any:
    """Replace lone surrogates with question marks in all strings in a value."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return value


def require_bounded(root: Any, most: int = MAX_VALUES, depth: int = MAX_DEPTH) -> Any:
    """Check the size and the nesting of a value, and return the value.

    Raise `RecursionError` if the value has too many parts or is nested too deeply. A part to which the value
    refers twice counts twice.
    """
    count, containers = 0, [(root, 0)]
    while containers:
        value, level = containers.pop()
        if isinstance(value, (dict, list, tuple)):
            count += len(value)
            if count > most or level > depth:
                raise RecursionError("too many values, or nested too deeply")
            inner = value.values() if isinstance(value, dict) else value
            containers += [(each, level + 1) for each in inner if isinstance(each, (dict, list, tuple))]
    return root
