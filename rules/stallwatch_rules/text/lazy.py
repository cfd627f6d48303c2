"""Compile regular expressions on first use.

There are hundreds of expressions, and a run uses a few: compiling all of them takes a fifth of the start-up
time of a watched command.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_NAMES: tuple[str, ...] = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")
_NAMES += ("pattern", "flags", "groups", "groupindex")


def lazy(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object that behaves like ``re.compile(pattern, flags)``, but is compiled on first use.

    ``match.re`` is the compiled pattern: compare its text, not the object.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(pattern, flags))


class _Compiled:
    """A pattern that was compiled, and has the methods of the compiled pattern as attributes."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self._given = pattern, flags

    def __reduce__(self) -> tuple[Any, ...]:
        return lazy, self._given


class _Lazy(_Compiled):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        compiled = re.compile(*self._given)
        self.__dict__.update({each: getattr(compiled, each) for each in _NAMES})
        # The attributes are found faster without the `__getattr__` of the class.
        self.__class__ = _Compiled  # type: ignore[assignment]
        return getattr(compiled, name)
