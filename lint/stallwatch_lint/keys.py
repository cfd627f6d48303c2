"""Keys that DeepSpeed, in the version at hand, does not take."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from packaging.version import Version

from stallwatch_lint.config_keys import LAST_KNOWN, REMOVED_AT_TOP, SECTIONS, Section, Span
from stallwatch_lint.diagnostic import Diagnostic, Severity, Words
from stallwatch_lint.dsconfig import AUTO, DsConfig, Path

_RULE = "deepspeed-config-invalid"


def check_keys(config: DsConfig, deepspeed: Version | None) -> Iterator[Diagnostic]:
    """Unknown, too new and removed keys.

    Without a version, what no release from 0.9 on takes is wrong for certain, and what only newer ones take
    is worth a hint. A release newer than those that were read may take keys that are unknown here.
    """
    for path, section in SECTIONS.items():
        values = config.section(*path)
        for key, value in values.items():
            if value == AUTO:
                continue  # dropped before the models see it (``config_utils.py``, ``DeepSpeedConfigModel``)
            diagnostic = _of_key(path, key, section, deepspeed)
            if diagnostic is not None:
                yield diagnostic.at(config.file, config.line(*path, key))
    for key, until in REMOVED_AT_TOP.items():
        if config.has(key):
            yield from _removed_at_top(config, key, until, deepspeed)


def _of_key(path: Path, key: str, section: Section, deepspeed: Version | None) -> Diagnostic | None:
    name = ".".join((*path, key))
    strict = deepspeed is None or _within(section.strict, deepspeed)
    newer = deepspeed is not None and deepspeed > Version(LAST_KNOWN)
    if not strict:
        return None
    span = section.keys.get(key)
    if span is None:
        certain = (
            not newer and section.strict.until is None and (deepspeed is not None or section.strict == Span())
        )
        return _unknown(name, key, section.keys, "fails" if certain else "likely", deepspeed)
    if deepspeed is None:
        return _needs(name, span, "advice", None) if span != Span() else None
    if _within(span, deepspeed):
        return None
    return _needs(name, span, "fails", deepspeed)


def _unknown(
    name: str, key: str, known: Mapping[str, Span], severity: Severity, deepspeed: Version | None
) -> Diagnostic:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    of = f" {deepspeed}" if deepspeed else ""
    return Diagnostic(
        "config-key-unknown",
        severity,
        Words(f"DeepSpeed{of} does not know the key {name}", f"DeepSpeed{of} 不认识键 {name}"),
        Words(
            "Objects such as this one are validated strictly: the run ends with a ValidationError"
            " before its first step.",
            "这类对象会被严格校验：训练在第一步之前就以 ValidationError 结束。",
        ),
        Words(
            f"Did you mean {near[0]}?" if near else "Take it out, or move it to the object where it belongs.",
            f"是否想写 {near[0]}？" if near else "删掉它，或移到它所属的对象里。",
        ),
        _RULE,
    )


def _needs(name: str, span: Span, severity: Severity, deepspeed: Version | None) -> Diagnostic:
    wanted = f">={span.since}" + (f",<{span.until}" if span.until else "")
    if deepspeed is None:
        what = Words(f"{name} needs deepspeed{wanted}", f"{name} 需要 deepspeed{wanted}")
    else:
        what = Words(f"DeepSpeed {deepspeed} refuses the key {name}", f"DeepSpeed {deepspeed} 拒绝键 {name}")
    return Diagnostic(
        "config-key-version",
        severity,
        what,
        Words(
            f"Releases outside of {wanted} end with an error (extra_forbidden, or 'removed') before"
            " the first step.",
            f"{wanted} 之外的版本会在第一步之前报错（extra_forbidden 或 “removed”）。",
        ),
        Words(f"Take the key out, or install deepspeed{wanted}.", f"删掉这个键，或安装 deepspeed{wanted}。"),
        _RULE,
    )


def _removed_at_top(
    config: DsConfig, key: str, until: str, deepspeed: Version | None
) -> Iterator[Diagnostic]:
    if deepspeed is None or deepspeed < Version(until):
        return
    yield Diagnostic(
        "config-key-removed",
        "fails",
        Words(
            f"DeepSpeed {deepspeed} has removed {key} and refuses the key",
            f"DeepSpeed {deepspeed} 已移除 {key}，并拒绝这个键",
        ),
        Words(
            f'Since {until} the key raises a DeepSpeedConfigError, even with "enabled": false.',
            f'自 {until} 起，即使 "enabled": false，出现这个键也会报 DeepSpeedConfigError。',
        ),
        Words(f"Take it out, or stay with deepspeed<{until}.", f"删掉它，或使用 deepspeed<{until}。"),
        _RULE,
        config.file,
        config.line(key),
    )


def _within(span: Span, version: Version) -> bool:
    return Version(span.since) <= version and (span.until is None or version < Version(span.until))
