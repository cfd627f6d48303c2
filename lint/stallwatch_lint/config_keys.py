"""Check for keys that a DeepSpeed version rejects or ignores, and for values of the wrong kind.

The keys and the kinds of their values are in `facts/deepspeed.yaml`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from packaging.version import Version

from stallwatch_lint.diagnostic import Diagnostic, diagnostic
from stallwatch_lint.dsconfig import AUTO, DsConfig, Path, number, whole
from stallwatch_lint.facts import facts
from stallwatch_lint.run import Run
from stallwatch_rules.messages import Message, message

FIRST_KNOWN = "0.9.0"
_ZERO = "zero_optimization"
_ACCELERATED = {"accelerate", "transformers", "trl"}
_FLAGS = {"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0"}
#: Minimum similarity (difflib) of a misspelled key to a known key. For example, ``train_micro_batch_size``
#: is similar enough to ``train_micro_batch_size_per_gpu``.
_ALIKE = 0.84

KindName = Literal["whole", "number", "flag", "object", "device"]


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration key, with the DeepSpeed releases that accept the key and the kind of its value."""

    since: str = FIRST_KNOWN
    until: str | None = None
    kind: KindName | None = None
    optional: bool = False  #: True if the value can also be ``null``

    @property
    def releases(self) -> str:
        """The releases that accept the key, as a version specifier."""
        return f">={self.since}" + (f",<{self.until}" if self.until else "")

    def within(self, version: Version) -> bool:
        """Return whether this release accepts the key."""
        return Version(self.since) <= version and (self.until is None or version < Version(self.until))


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in the configuration. DeepSpeed `since` and later reject unknown keys in the object."""

    keys: dict[str, Key]
    since: str = FIRST_KNOWN


class _DeepSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    last_known: str
    sections: dict[str, Section]
    top: set[str]
    removed_at_top: dict[str, str]
    counted: list[str]


KNOWN = facts("deepspeed", _DeepSpeed)


def check_keys(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Yield diagnostics for keys that the installed DeepSpeed does not recognize.

    If the installed version is unknown, a key that no known release accepts is certainly wrong if all known
    releases reject unknown keys in its section. In any other section, the key is likely wrong. A key that
    only some releases accept causes a hint. A release that is later than the last known release might accept
    keys that this check does not recognize.
    """
    deepspeed = run.version("deepspeed")
    release = f"DeepSpeed {deepspeed}" if deepspeed else "DeepSpeed"
    newer = deepspeed is not None and deepspeed > Version(KNOWN.last_known)
    for path, _, section in _entries(config, deepspeed):
        name, place, key = ".".join(path), config.at(*path), section.keys.get(path[-1])
        if key is None:
            certain = not newer and (deepspeed is not None or section.since == FIRST_KNOWN)
            yield diagnostic(
                "config-key-unknown",
                place,
                severity="fails" if certain else "likely",
                fix=did_you_mean(path[-1], section.keys),
                name=name,
                release=release,
            )
        elif deepspeed is None:
            if key.until or key.since != FIRST_KNOWN:
                yield diagnostic("config-key-version", place, name=name, wanted=key.releases)
        elif not key.within(deepspeed):
            yield diagnostic(
                "config-key-version-refused", place, name=name, wanted=key.releases, release=str(deepspeed)
            )
    for top, until in KNOWN.removed_at_top.items():
        if config.has(top) and deepspeed is not None and deepspeed >= Version(until):
            yield diagnostic(
                "config-key-removed", config.at(top), key=top, until=until, release=str(deepspeed)
            )


def check_top_keys(config: DsConfig, _run: Run) -> Iterator[Diagnostic]:
    """Report top-level keys that DeepSpeed ignores: misspelled keys and keys of ``zero_optimization``.

    DeepSpeed 0.19.8 reads the keys that it recognizes and ignores all other keys (``runtime/config.py``,
    ``_initialize_params``). Users keep notes and their own settings at the top level, so a key is reported
    only if it is similar to a key that DeepSpeed reads.
    """
    for key in () if config.accelerate else config.values:
        if not isinstance(key, str) or key in KNOWN.top:  # YAML keys can have any type
            continue
        if key in KNOWN.sections[_ZERO].keys:
            fix: Message | None = message("lint.config-key-ignored-inside", section=_ZERO)
        else:
            fix = did_you_mean(key, KNOWN.top, _ALIKE)
        if fix is not None and not _put_aside(key, str(fix.params.get("near", ""))):
            yield diagnostic("config-key-ignored", config.at(key), fix=fix, key=key)


def check_values(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Report values that DeepSpeed's pydantic models reject, and strings that DeepSpeed uses in calculations.

    Other checks (``facts/assertions.yaml``) report fractions and nonexistent stages. DeepSpeed 0.17.0 and
    earlier do not validate ``fp16`` and ``bf16``.
    """
    deepspeed = run.version("deepspeed")
    for path, value, section in _entries(config, deepspeed):
        key = section.keys.get(path[-1])
        if key is None or key.kind is None or (value is None and key.optional) or _TAKES[key.kind](value):
            continue
        plain = _plain(value) if key.kind in ("whole", "number") else None
        wanted = message(f"lint.kind-{key.kind}")
        yield diagnostic(
            "config-value-kind",
            config.at(*path),
            severity="fails" if deepspeed is not None or section.since == FIRST_KNOWN else "likely",
            fix=message("lint.config-value-kind-fix", wanted=wanted if plain is None else plain),
            name=".".join(path),
            shown=_shown(value),
            wanted=wanted,
        )
    for name in KNOWN.counted:
        value = config.get(name)
        if isinstance(value, str) and value != AUTO:
            plain = _plain(value)
            yield diagnostic(
                "config-value-kind-text",
                config.at(name),
                key=name,
                value=_shown(value),
                number=message("lint.kind-number") if plain is None else plain,
            )


def check_quoted_stage(config: DsConfig, run: Run) -> Iterator[Diagnostic]:
    """Find ``"stage": "3"`` in runs that use accelerate.

    DeepSpeed reads this string as 3, but the other libraries do not recognize it.

    Sources: accelerate 1.15.0, ``utils/deepspeed.py`` (``is_zero3``, which transformers 5.23.0 calls in
    ``integrations/deepspeed.py``) and ``accelerator.py`` (``get_state_dict``).
    """
    value = config.get(_ZERO, "stage")
    if not isinstance(value, str) or config.stage != 3:
        return
    if any(script.imports & _ACCELERATED and not script.deepspeed_itself for script in run.scripts):
        yield diagnostic("stage-in-quotes", config.at(_ZERO, "stage"), value=_shown(value))


def did_you_mean(key: str, known: Iterable[str], cutoff: float = 0.75) -> Message | None:
    """Return a message that suggests the most similar known key, or ``None`` if no key is similar enough."""
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=cutoff)
    return message("lint.did-you-mean", near=near[0]) if near else None


def _entries(config: DsConfig, deepspeed: Version | None) -> Iterator[tuple[Path, Any, Section]]:
    """Yield the entries of the objects that this release validates, each with its path, value, and section.

    Skip entries with the value ``auto``, which DeepSpeed removes before validation
    (``runtime/config_utils.py``, ``DeepSpeedConfigModel``).
    """
    for name, section in KNOWN.sections.items():
        if deepspeed is None or deepspeed >= Version(section.since):
            path = tuple(name.split("."))
            for key, value in config.section(*path).items():
                if isinstance(key, str) and value != AUTO:
                    yield (*path, key), value, section


def _put_aside(key: str, name: str) -> bool:
    """Return whether a key looks like a disabled form of the name (``_optimizer`` or ``optimizer_old``).

    Because JSON has no comments, users rename a key in this way to disable it.
    """
    before, _, behind = key.partition(name) if name else ("x", "", "")
    return name in key and not (before + behind).isalnum()


def _is_whole(value: Any) -> bool:
    return whole(value) is not None or number(value) is not None  # a separate assertion reports fractions


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\s*[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", value) is not None
    return isinstance(value, (bool, int, float))


def _is_flag(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in _FLAGS
    return isinstance(value, (bool, int, float)) and value in (0, 1)


_TAKES: Mapping[KindName, Callable[[Any], bool]] = {
    "whole": _is_whole,
    "number": _is_number,
    "flag": _is_flag,
    "object": lambda value: isinstance(value, Mapping),
    "device": lambda value: value in ("none", "cpu", "nvme"),
}


def _plain(value: Any) -> int | float | None:
    """Convert a string to a number. Return ``None`` if the string is not a number."""
    try:
        found = number(float(value)) if isinstance(value, str) else None
    except ValueError:
        return None
    return int(found) if found is not None and found == int(found) else found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"
