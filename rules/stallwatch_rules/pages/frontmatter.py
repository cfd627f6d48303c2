"""The YAML front matter of a rule page, with the line of every value kept for error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import yaml

from stallwatch_rules.pages.page_body import PageError
from stallwatch_rules.text.lazy import lazy

T = TypeVar("T")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where PyYAML has libyaml

_AT = lazy(r" - at `\$(?P<path>[^`]*)`$")
_STEP = lazy(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]")
_UNKNOWN = lazy(r"unknown field `(?P<field>[^`]*)`")


@dataclass(frozen=True)
class Matter:
    """A page cut in two: the front matter (values, and YAML nodes that know their lines) and the body."""

    values: Any
    node: yaml.Node | None
    body: str
    body_line: int  #: 1-based line of the page on which the body starts

    def line_of(self, *keys: str | int) -> int:
        """The page's line of the value at ``keys``; the nearest enclosing line where there is none."""
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


def split(text: str, path: str) -> Matter:
    """Cut the page at its ``---`` lines and read the YAML between them."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    remedy = "start the page with a line '---', the front matter, and another line '---'"
    if lines[0].rstrip() != "---":
        raise PageError(path, 1, "no front matter", remedy)
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise PageError(path, 1, "the front matter does not end", remedy)
    loader = _Loader("\n".join(lines[1:end]) + "\n")
    try:
        node = loader.get_single_node()
        _refuse_duplicates(node, path)
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 2 if mark is not None else 1
        raise PageError(
            path, line, f"not valid YAML: {error.problem}", "mend the YAML; quote text with ':' or '#' in it"
        ) from error
    except PageError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise PageError(path, 1, f"not valid YAML: {error}", "mend the YAML") from error
    finally:
        loader.dispose()
    return Matter(values, node, "\n".join(lines[end + 1 :]), end + 2)


def _refuse_duplicates(node: yaml.Node | None, path: str) -> None:
    seen: set[str] = set()
    for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        key = str(name.value)
        if key in seen:
            raise PageError(path, name.start_mark.line + 2, f"{key} is given twice", "keep one of the two")
        seen.add(key)


def convert(matter: Matter, kind: type[T], path: str) -> T:
    """The values as a record of the given kind; one fault of every top-level key is reported."""
    values = dict(matter.values) if isinstance(matter.values, dict) else matter.values
    problems: list[PageError] = []
    while True:
        try:
            result = msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            message = str(error)
            keys = _keys(message)
            placeholders = _placeholders(kind)
            problems.append(_problem(matter, message, keys, path, kind))
            unknown = _UNKNOWN.search(message)
            missing = re.search(r"missing required field `(?P<field>\w+)`", message)
            # Take the faulty key out of the way and look on, so that one reading tells all faults.
            if not keys and unknown:
                values.pop(unknown["field"])
            elif not keys and missing:
                values[missing["field"]] = placeholders[missing["field"]]
            elif keys and keys[0] in placeholders:
                values[keys[0]] = placeholders[str(keys[0])]
            else:
                break
        else:
            if not problems:
                return result
            break
    raise PageError.of(problems)


def _placeholders(kind: type[Any]) -> dict[str, Any]:
    """A value that each field accepts, to go on reading behind a fault."""
    by_type: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        if isinstance(info, msgspec.inspect.ListType):
            by_type[field.name] = []
        elif isinstance(info, msgspec.inspect.DictType):
            by_type[field.name] = {}
        elif isinstance(info, msgspec.inspect.LiteralType):
            by_type[field.name] = info.values[0]
        else:
            by_type[field.name] = ""
    return by_type


def _choices(kind: type[Any]) -> dict[str, list[str]]:
    """The words that a field is limited to."""
    infos = {field.name: msgspec.inspect.type_info(field.type) for field in msgspec.structs.fields(kind)}
    return {
        name: [str(value) for value in info.values]
        for name, info in infos.items()
        if isinstance(info, msgspec.inspect.LiteralType)
    }


def _keys(message: str) -> list[str | int]:
    at = _AT.search(message)
    if at is None:
        return []
    return [step["key"] or int(step["index"]) for step in _STEP.finditer(at["path"])]


def _problem(matter: Matter, message: str, keys: list[str | int], path: str, kind: type[Any]) -> PageError:
    where = ".".join(str(key) for key in keys)
    plain = _AT.sub("", message)
    unknown = _UNKNOWN.search(message)
    if unknown:
        field = unknown["field"]
        return PageError(
            path,
            matter.line_of(*keys, field),
            f"unknown key {field!r}" + (f" in {where}" if where else ""),
            "remove it, or mend its spelling",
        )
    missing = re.search(r"missing required field `(?P<field>\w+)`", message)
    if missing:
        return PageError(
            path,
            matter.line_of(*keys),
            f"{missing['field']} is missing" + (f" in {where}" if where else ""),
            f"add the line '{missing['field']}: …' to the front matter",
        )
    choices = _choices(kind).get(str(keys[0])) if len(keys) == 1 else None
    if choices:
        remedy = f"use one of: {', '.join(choices)}"
    else:
        remedy = "quote the value" if "Expected `str" in plain else "see the page format in CONTRIBUTING.md"
    return PageError(path, matter.line_of(*keys), f"{where or 'front matter'}: {plain}", remedy)
