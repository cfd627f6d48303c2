"""Hooks on methods and attributes that leave no frame of the probe on the stack."""

from __future__ import annotations

import traceback
import types
from types import FrameType
from typing import Any

import pytest

from stallwatch_exporter.probe.noticing import notice_method, notice_module_attribute, stop_noticing


class Engine:
    def save(self) -> str:
        raise ValueError("no room")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def unexpected() -> None:
    raise AssertionError("a notice failed")


def test_method_can_have_several_hooks() -> None:
    cls = type("Own", (Engine,), {"save": Engine.save})
    seen: list[str] = []
    failed: list[int] = []
    assert notice_method(cls, "save", lambda _, frame: seen.append(frame.f_code.co_name), unexpected)
    assert notice_method(cls, "save", lambda *_: 1 / 0, lambda: failed.append(1))
    assert notice_method(cls, "save", lambda *_: seen.append("third"), unexpected)
    with pytest.raises(ValueError, match="no room") as caught:
        cls().save()
    assert seen == ["test_method_can_have_several_hooks", "third"]
    assert failed == [1]
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 2  # this test and ``save``


def test_removed_hook_restores_the_function() -> None:
    cls = type("Own", (Engine,), {"save": Engine.save})
    assert notice_method(cls, "save", lambda *_: unexpected(), unexpected)
    stop_noticing(cls, "save")
    stop_noticing(cls, "save")
    assert vars(cls)["save"] is Engine.save


def test_with_statement_is_observed_at_its_start() -> None:
    cls = type("Own", (Engine,), {"__enter__": Engine.__enter__})
    seen: list[Any] = []
    assert notice_method(cls, "__enter__", lambda obj, _: seen.append(obj), unexpected)
    with cls() as one:
        assert seen == [one]


def test_module_attribute_access_from_outside_is_observed() -> None:
    module = types.ModuleType("library")
    module.part = types.SimpleNamespace(name="part")  # type: ignore[attr-defined]
    callers: list[str] = []

    def noticed(_: object, frame: FrameType) -> None:
        callers.append(frame.f_code.co_name)

    assert notice_module_attribute(module, "part", noticed, unexpected)
    assert not notice_module_attribute(module, "other", noticed, unexpected)
    assert module.part.name == "part"
    assert callers == ["test_module_attribute_access_from_outside_is_observed"]
    module.part = 3  # type: ignore[attr-defined]
    assert module.part == vars(module)["part"] == 3
    assert repr(module) == "<module 'library'>" and isinstance(module, types.ModuleType)
    del module.part  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        module.part  # noqa: B018
