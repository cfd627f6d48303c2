"""Notice that a method is used, or an attribute set, without standing on the stack.

A function that wraps another shows up in every traceback through it, and a training that fails would print
something else than it does without the probe. A descriptor is asked for the method just before the call and
hands out the original: what is called, and what a traceback shows, stays as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class NoticedMethod:
    """Stands for a function in a class: ``notice(object, frame)`` is called whenever it is looked up."""

    def __init__(
        self,
        function: Any,
        notice: Callable[[Any, FrameType], None],
        failed: Callable[[], None],
    ) -> None:
        self.function = function
        self._notice = notice
        self._failed = failed

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is not None:
            try:
                self._notice(obj, sys._getframe(1))
            except Exception:
                self._failed()
        return self.function.__get__(obj, owner)


class NoticedAttribute:
    """Stands for an instance attribute: ``notice(object, value)`` is called after it was set.

    The value stays where it always was, in the instance's ``__dict__``.
    """

    def __init__(self, name: str, notice: Callable[[Any, Any], None], failed: Callable[[], None]) -> None:
        self._name = name
        self._notice = notice
        self._failed = failed

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is None:
            return self
        try:
            return obj.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(obj).__name__!r} object has no attribute {self._name!r}") from None

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self._name] = value
        try:
            self._notice(obj, value)
        except Exception:
            self._failed()

    def __delete__(self, obj: Any) -> None:
        try:
            del obj.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


def notice_method(
    cls: type, name: str, notice: Callable[[Any, FrameType], None], failed: Callable[[], None]
) -> bool:
    """Put a `NoticedMethod` in the place of a function of the class itself; False where there is none."""
    function = vars(cls).get(name)
    if function is None or isinstance(function, NoticedMethod) or not hasattr(function, "__get__"):
        return False
    setattr(cls, name, NoticedMethod(function, notice, failed))
    return True


def notice_attribute(
    cls: type, name: str, notice: Callable[[Any, Any], None], failed: Callable[[], None]
) -> bool:
    """The same for an attribute that instances have; False where the class has something of that name."""
    if hasattr(cls, name):
        return False
    setattr(cls, name, NoticedAttribute(name, notice, failed))
    return True
