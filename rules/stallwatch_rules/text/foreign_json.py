"""JSON that another program wrote, or that was cut, damaged or made up."""

from __future__ import annotations

import json
from typing import Any

import msgspec

#: What decoding raises for bytes that are no such JSON: not the form, not UTF-8, nested too deeply.
NOT_JSON = (msgspec.MsgspecError, ValueError, RecursionError)
_LONGEST_WHOLE = 20  # characters of what 64 bits hold


def read_json(data: str | bytes) -> Any:
    """Return the value in the text; a `ValueError` if it holds none.

    Whole numbers that need more than 64 bits are floats, infinity if need be, so that no arithmetic fails.
    Halves of surrogates, which nothing can write, are question marks.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        found = json.loads(text, parse_int=_whole)
        return sound(found) if "\\u" in text else found
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(digits: str) -> int | float:
    whole = int(digits) if len(digits) <= _LONGEST_WHOLE else None
    return whole if whole is not None and -(2**63) <= whole < 2**64 else float(digits)


def sound(value: Any) -> Any:
    """Return the value with question marks for halves of surrogates in its texts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [sound(each) for each in value]
    if isinstance(value, dict):
        return {sound(key): sound(each) for key, each in value.items()}
    return value
