"""Compile regular expressions on first use.

Stallwatch has hundreds of expressions, but a run uses only a few. Compiling all of them would take a fifth
of the startup time of a watched command.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_NAMES: tuple[str, ...] = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")
_NAMES += ("pattern", "flags", "groups", "groupindex")


def lazy(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an object that behaves like ``re.compile(pattern, flags)`` but is compiled on first use.

    ``match.re`` is the compiled pattern and not this object. To compare patterns, compare their texts.
    """
    return cast("re.Pattern[AnyStr]", _Lazy(pattern, flags))


class _Compiled:
    """A pattern that has been compiled. Its attributes are the methods of the compiled pattern."""

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
        # Without the `__getattr__` of the class, Python finds the attributes faster.
        self.__class__ = _Compiled  # type: ignore[assignment]
        return getattr(compiled, name)
