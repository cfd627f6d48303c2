"""Represent a DeepSpeed configuration: its values and the line of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stallwatch_lint.diagnostic import Place
from stallwatch_rules.text.lazy import lazy

Path = tuple[str, ...]  #: the keys from the top, such as ``("zero_optimization", "stage")``
_LARGEST = 1e300
_LAST_STAGE = 3  # ``ZeroStageEnum.max_stage`` of DeepSpeed 0.19.8, ``runtime/zero/config.py``
_WHOLE_TEXT = lazy(r"[+-]?[0-9]{1,300}(_[0-9]{1,300}){0,9}(\.0{1,300})?")
AUTO = "auto"  #: A value that transformers or accelerate replaces. DeepSpeed itself does not replace it.


@dataclass(frozen=True)
class DsConfig:
    """The values of one configuration file, with the line numbers of its keys.

    ``lines`` maps keys to their line numbers, counted from 1. It does not contain keys that are not in the
    file. ``world_size`` is the number of ranks that the file specifies (``num_processes`` for accelerate).
    """

    values: Mapping[str, Any]
    file: str
    lines: Mapping[Path, int] = field(default_factory=dict)
    world_size: int | None = None
    #: True if the configuration was built from accelerate settings in the same way as in accelerate
    accelerate: bool = False

    def get(self, *path: str) -> Any:
        """Return the value at this path, or ``None`` if it is missing."""
        value: Any = self.values
        for key in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def has(self, *path: str) -> bool:
        """Return whether the key is present, regardless of its value."""
        return path[-1] in self.section(*path[:-1])

    def section(self, *path: str) -> Mapping[str, Any]:
        """Return the object at this path, or an empty object if the path is missing."""
        value = self.get(*path)
        return value if isinstance(value, Mapping) else {}

    def on(self, *path: str) -> bool:
        """Return whether the value is exactly ``true``. ``auto`` and other values do not count."""
        return self.get(*path) is True

    def at(self, *path: str) -> Place:
        """Return the file and the line of this key or of the nearest enclosing object whose line is known."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.file, self.lines.get(path)

    @property
    def stage(self) -> int | None:
        """The ZeRO stage that the configuration specifies.

        The stage is 0 if none is set, and ``None`` if it cannot be determined.

        A boolean for ``zero_optimization`` is a deprecated form: ``true`` means stage 1 (DeepSpeed 0.19.8,
        ``runtime/zero/config.py``, ``read_zero_config_deprecated``).
        """
        zero = self.values.get("zero_optimization")
        if zero is None or zero is False:
            return 0
        if zero is True:
            return 1
        return whole(zero.get("stage", 0)) if isinstance(zero, Mapping) else None

    @property
    def with_valid_stage(self) -> DsConfig:
        """The configuration, in which stage 3 replaces any stage greater than 3.

        A separate diagnostic reports a stage greater than 3. Because of this replacement, conflicts with
        ZeRO-3 are also reported immediately, not only after the user has fixed the stage.
        """
        if self.stage is None or self.stage <= _LAST_STAGE:
            return self
        zero = {**self.section("zero_optimization"), "stage": _LAST_STAGE}
        return replace(self, values={**self.values, "zero_optimization": zero})


def number(value: Any) -> float | None:
    """Return the value as a finite float, or ``None`` for any other value, such as ``true`` or ``"auto"``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > _LARGEST:
        return None
    return float(value) if value == value else None


def whole(value: Any) -> int | None:
    """Return the integer that pydantic 2 (2.14.3) reads from a value, or ``None`` if pydantic rejects it.

    For example, the result is 3 for ``3.0`` and ``"3"``, and ``None`` for ``"3e0"``.
    """
    if isinstance(value, str):
        text = value.strip()
        return int(text.partition(".")[0]) if _WHOLE_TEXT.fullmatch(text) else None
    if isinstance(value, bool):
        return int(value)
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def has_auto(value: Any) -> bool:
    """Return whether any part of a value is ``auto``, which transformers or accelerate must replace."""
    if isinstance(value, Mapping):
        return any(has_auto(element) for element in value.values())
    if isinstance(value, list):
        return any(has_auto(element) for element in value)
    return bool(value == AUTO)
