"""Notice that a method is used, or an attribute set, without standing on the stack.

A function that wraps another shows up in every traceback through it, and a training that fails would print
something else than it does without the probe. A descriptor is asked for the method just before the call and
hands out the original: what is called, and what a traceback shows, stays as it was.
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
    """Stands for a function in a class: ``notice(object, frame)`` is called whenever it is looked up."""

    def __init__(
        self,
        function: Any,
        notice: Notice,
        failed: Callable[[], None],
    ) -> None:
        self.function = function
        self._notices: tuple[tuple[Notice, Callable[[], None]], ...] = ((notice, failed),)

    def add(self, notice: Notice, failed: Callable[[], None]) -> None:
        """Call this one as well."""
        self._notices += ((notice, failed),)

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        if obj is not None:
            for notice, failed in self._notices:
                try:
                    notice(obj, sys._getframe(1))
                except Exception:
                    failed()
        return self.function.__get__(obj, owner)


class NoticedAttribute:
    """Stands for an instance attribute, whose value stays in the instance's ``__dict__``.

    ``looked_up(object, frame)`` is called before it is looked up, ``was_set(object, value)`` after it is set.
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
    """Put a `NoticedMethod` in the place of a function of the class itself; False where there is none.

    Several hooks may notice the same method.
    """
    function = vars(cls).get(name)
    if isinstance(function, NoticedMethod):
        function.add(notice, failed)
        return True
    if function is None or not hasattr(function, "__get__"):
        return False
    setattr(cls, name, NoticedMethod(function, notice, failed))
    return True


def stop_noticing(cls: type, name: str) -> None:
    """Put the function itself back in its place, for all hooks."""
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
    """The same for an attribute that instances have; False where the class has something of that name."""
    if hasattr(cls, name):
        return False
    setattr(cls, name, NoticedAttribute(name, failed, looked_up=looked_up, was_set=was_set))
    return True


def notice_module_attribute(
    module: ModuleType, name: str, notice: Notice, failed: Callable[[], None]
) -> bool:
    """Call ``notice(module, frame)`` whenever ``module.name`` is looked up; False where it has no such thing.

    Only from outside: code in the module itself reads its globals without asking the module.
    """
    if name not in vars(module):
        return False
    noticed = NoticedAttribute(name, failed, looked_up=notice)
    module.__class__ = type("module", (type(module),), {name: noticed})
    return True
