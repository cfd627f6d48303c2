"""Check a configuration against the DeepSpeed assertions that are listed in `facts/assertions.yaml`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from packaging.version import Version

from stallwatch_lint.diagnostic import Diagnostic, Severity, diagnostic
from stallwatch_lint.dsconfig import DsConfig, number, whole
from stallwatch_lint.facts import facts
from stallwatch_lint.run import Run


class Assertion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A combination of values that DeepSpeed rejects. `facts/assertions.yaml` explains the fields."""

    kind: str
    key: str
    when: dict[str, Any]
    source: str
    value: str | None = None
    each: dict[str, str] | None = None
    since: str | None = None


_ASSERTIONS = facts("assertions", list[Assertion])


def check_assertions(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each DeepSpeed assertion that this configuration violates."""
    deepspeed = run.version("deepspeed")
    for entry in _ASSERTIONS:
        severity: Severity | None = None
        if entry.since is not None and deepspeed is not None:
            if deepspeed < Version(entry.since):
                continue
            severity = "fails"
        for key, new in (entry.each or {"": ""}).items():
            names = {"key": key, "new": new}
            if all(_holds(config, path.format(**names), test) for path, test in entry.when.items()):
                path = entry.key.format(**names).split(".")
                value = number(_value(config, entry.value or ".".join(path)))
                shown: dict[str, Any] = {} if value is None else {"value": value, "whole": int(value)}
                yield diagnostic(
                    entry.kind,
                    config.at(*path),
                    severity=severity,
                    stage=config.stage or 0,
                    key=path[-1],
                    new=new,
                    **shown,
                )


def _value(config: DsConfig, path: str) -> Any:
    return config.stage if path == "stage" else config.get(*path.split("."))


def _holds(config: DsConfig, path: str, test: Any) -> bool:
    value = _value(config, path)
    if isinstance(test, Mapping):
        ((name, limit),) = test.items()
        return not config.has(*path.split(".")) if name == "missing" else _TESTS[name](value, limit)
    return any(
        type(value) is type(expected) and value == expected
        for expected in (test if isinstance(test, list) else [test])
    )


def _fraction(value: Any, _: Any) -> bool:
    found = number(value)
    return found is not None and found != int(found)


_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    "below": lambda value, limit: (found := number(value)) is not None and found < limit,
    "other_than": lambda value, limit: number(value) not in (None, limit),
    "outside": lambda value, known: whole(value) not in (None, *known),
    "fraction": _fraction,
    "set": lambda value, _: value is not None,
    "empty": lambda value, _: not value,
}
