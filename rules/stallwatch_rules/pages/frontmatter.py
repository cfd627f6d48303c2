"""Read the YAML front matter of a rule page, with line numbers of all values for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import yaml

from stallwatch_rules import decoding
from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.text.lazy import lazy

T = TypeVar("T", bound=msgspec.Struct)

#: If PyYAML has libyaml, loading is ten times as fast. libyaml also limits the nesting of values. The Python
#: loader of PyYAML can need minutes for deeply nested values.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_AT = lazy(r" - at `\$(?P<path>[^`]*)`$")
_STEP = lazy(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]")
_UNKNOWN = lazy(r"unknown field `(?P<field>[^`]*)`")
_MISSING = lazy(r"missing required field `(?P<field>\w+)`")


@dataclass(frozen=True)
class FrontMatter:
    """The parts of a page: the front matter as values and as YAML nodes with line numbers, and the body."""

    values: Any
    node: yaml.Node | None
    body: str
    body_line: int  #: 1-based line number at which the body starts

    def line_of(self, *keys: str | int) -> int:
        """Return the line number of the value at `keys`, or of the innermost value around it."""
        node, line = self.node, 1
        for key in keys:
            child = _child(node, key)
            if child is None:
                break
            node, line = child, child.start_mark.line + 2
        return line


def _child(node: yaml.Node | None, key: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        child: yaml.Node = node.value[key]
        return child
    return None


def split(text: str, path: str) -> FrontMatter:
    """Split a page at its ``---`` lines and parse the YAML between them. Raise `PageError` for errors."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    remedy = "start the page with a line '---', the front matter, and another line '---'"
    if lines[0].rstrip() != "---":
        raise PageError(path, 1, "the page has no front matter", remedy)
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise PageError(path, 1, "the front matter has no closing '---' line", remedy)
    loader = LOADER("\n".join(lines[1:end]) + "\n")
    try:
        node = loader.get_single_node()
        _refuse_duplicates(node, path)
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 2 if mark is not None else 1
        raise PageError(
            path,
            line,
            f"not valid YAML: {error.problem}",
            "correct the YAML; quote text that contains ':' or '#'",
        ) from error
    except PageError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise PageError(path, 1, f"not valid YAML: {error}", "correct the YAML") from error
    finally:
        loader.dispose()
    return FrontMatter(values, node, "\n".join(lines[end + 1 :]), end + 2)


def _refuse_duplicates(node: yaml.Node | None, path: str) -> None:
    seen: set[str] = set()
    for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        key = str(name.value)
        if key in seen:
            raise PageError(
                path, name.start_mark.line + 2, f"the key {key} occurs twice", "keep only one of them"
            )
        seen.add(key)


def convert(matter: FrontMatter, kind: type[T], path: str) -> T:
    """Convert the values to a record of this type. Raise a `PageError` with one problem for each key."""
    values: Any = matter.values
    if not isinstance(values, dict):
        remedy = "write 'key: value' lines, as CONTRIBUTING.md shows"
        raise PageError(path, 1, "the front matter has no keys", remedy)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    problems = [_unknown(matter, path, str(key)) for key in values if key not in fields]
    found: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            try:
                found[name] = decoding.convert(values[name], field.type)
            except msgspec.ValidationError as error:
                problems.append(_problem(matter, path, name, field.type, str(error)))
        elif field.required:
            problems.append(_missing(matter, path, name))
    if problems:
        raise PageError.of(problems)
    return kind(**found)


def _problem(matter: FrontMatter, path: str, name: str, kind: Any, message: str) -> PageError:
    at = _AT.search(message)
    steps = _STEP.finditer(at["path"]) if at is not None else ()
    keys: list[str | int] = [name, *(step["key"] or int(step["index"]) for step in steps)]
    unknown, missing = _UNKNOWN.search(message), _MISSING.search(message)
    if unknown:
        return _unknown(matter, path, unknown["field"], *keys)
    if missing:
        return _missing(matter, path, missing["field"], *keys)
    info = msgspec.inspect.type_info(kind)
    info = info.item_type if isinstance(info, msgspec.inspect.ListType) else info
    if isinstance(info, msgspec.inspect.LiteralType):
        remedy = f"use one of: {', '.join(map(str, info.values))}"
    else:
        remedy = "quote the value" if "Expected `str" in message else "see the page format in CONTRIBUTING.md"
    plain = _AT.sub("", message)
    return PageError(path, matter.line_of(*keys), f"{_place(keys)}: {plain}", remedy)


def _unknown(matter: FrontMatter, path: str, field: str, *keys: str | int) -> PageError:
    message = f"unknown key {field!r}" + (f" in {_place(keys)}" if keys else "")
    return PageError(path, matter.line_of(*keys, field), message, "remove the key, or correct its spelling")


def _missing(matter: FrontMatter, path: str, field: str, *keys: str | int) -> PageError:
    message = f"{field} is missing" + (f" in {_place(keys)}" if keys else "")
    remedy = f"add the line '{field}: …' to the front matter"
    return PageError(path, matter.line_of(*keys), message, remedy)


def _place(keys: Iterable[str | int]) -> str:
    return ".".join(map(str, keys))
