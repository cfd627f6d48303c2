"""Observe lookups of a method, or assignments to an attribute, without adding a frame to the stack.

A function that wraps another function appears in every traceback through that function, so a failing program
would print different output. Instead, this module installs descriptors. Python calls a descriptor when code
looks up the method, immediately before the call, and the descriptor returns the original method.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

    Notice = Callable[[Any, FrameType], None]


class NoticedMethod:
    """Descriptor that replaces a function in a class. Each lookup calls ``notice(object, frame)``."""

    def __init__(self, function: Any) -> None:
        self.function = function
        #: Functions to call at a lookup, each with its error handler.
        self.notices: list[tuple[Notice, Callable[[], None]]] = []

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is not None:
            for notice, failed in self.notices:
                try:
                    notice(obj, sys._getframe(1))
                except Exception:
                    failed()
        return self.function.__get__(obj, owner)


class NoticedAttribute:
    """Descriptor that replaces an instance attribute. The value stays in the instance's ``__dict__``.

    ``looked_up(object, frame)`` is called before a lookup, and ``was_set(object, value)`` after a change.
    """

    def __init__(
        self,
        name: str,
        failed: Callable[[], None],
        *,
        looked_up: Notice | None = None,
        was_set: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self._name = name
        self._failed = failed
        self._looked_up = looked_up
        self._was_set = was_set

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is None:
            return self
        if self._looked_up is not None:
            try:
                self._looked_up(obj, sys._getframe(1))
            except Exception:
                self._failed()
        try:
            return obj.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(obj).__name__!r} object has no attribute {self._name!r}") from None

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self._name] = value
        if self._was_set is not None:
            try:
                self._was_set(obj, value)
            except Exception:
                self._failed()

    def __delete__(self, obj: Any) -> None:
        try:
            del obj.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None


def notice_method(cls: type, name: str, notice: Notice, failed: Callable[[], None]) -> bool:
    """Observe a function that the class itself defines. Return False if the class does not define it.

    Several hooks can observe the same function.
    """
    function = vars(cls).get(name)
    if not isinstance(function, NoticedMethod):
        if function is None or not hasattr(function, "__get__"):
            return False
        function = NoticedMethod(function)
        setattr(cls, name, function)
    function.notices.append((notice, failed))
    return True


def stop_noticing(cls: type, name: str) -> None:
    """Restore the original function of a class for all hooks."""
    function = vars(cls).get(name)
    if isinstance(function, NoticedMethod):
        setattr(cls, name, function.function)


def notice_attribute(
    cls: type,
    name: str,
    failed: Callable[[], None],
    *,
    looked_up: Notice | None = None,
    was_set: Callable[[Any, Any], None] | None = None,
) -> bool:
    """Observe an attribute of instances. Return False if the class itself defines that attribute."""
    if hasattr(cls, name):
        return False
    setattr(cls, name, NoticedAttribute(name, failed, looked_up=looked_up, was_set=was_set))
    return True


def notice_module_attribute(
    module: ModuleType, name: str, notice: Notice, failed: Callable[[], None]
) -> bool:
    """Call ``notice(module, frame)`` at each lookup of ``module.name``. Return False if the name is missing.

    Lookups by the module's own code are not observed, because a module reads its globals directly.
    """
    if name not in vars(module):
        return False
    noticed = NoticedAttribute(name, failed, looked_up=notice)
    module.__class__ = type("module", (type(module),), {name: noticed})
    return True
