"""Read the Markdown body of a rule page: its sections, numbered fixes, and sample blocks."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

import msgspec

from stallwatch_rules.text.lazy import lazy


class PageError(ValueError):
    """A problem on a rule page. ``every()`` returns this problem and all other problems on the same page."""

    def __init__(self, path: str, line: int, message: str, remedy: str) -> None:
        super().__init__(f"{path}:{line}: {message}; {remedy}")
        self.path = path
        self.line = line
        self.message = message
        self.remedy = remedy
        self.others: list[PageError] = []

    @classmethod
    def of(cls, problems: Sequence[PageError]) -> PageError:
        """Return one exception for all problems: the first problem, with the other problems attached."""
        first = problems[0]
        first.others = list(problems[1:])
        return first

    def every(self) -> list[PageError]:
        """Return this problem and the other problems on the same page."""
        return [self, *self.others]


_HEADINGS = {
    "## What happened": "what",
    "## Why": "why",
    "## Fix": "fix",
    "## When it is harmless": "harmless",
    "## Samples": "samples",
    "## 中文": "zh",
}
_ZH_HEADINGS = {"### 发生了什么": "zh_what", "### 原因": "zh_why", "### 处理": "zh_fix"}
_REQUIRED = {
    name: heading
    for heading, name in (_HEADINGS | _ZH_HEADINGS).items()
    if name not in ("harmless", "samples")
}

_CHINESE = ("zh", *_ZH_HEADINGS.values())

# Function that receives the parts of a problem: line, message, and remedy.
_Report = Callable[[int, str, str], None]

_HEADING = lazy(r"#{1,3} .*")
_FENCE = lazy(r"(?P<indent> *)(?P<ticks>`{3,})\s*(?P<info>[^`]*)")
_TWO_CHINESE = lazy("[\u4e00-\u9fff]{2}")
_FULL_WIDTH = lazy("[\u3000-\u303f\uff00-\uffef]")
_ITEM = lazy(r"\d+[.)]\s+(?P<text>\S.*)")
_BULLET = lazy(r"\s*([-*+]|\d+[.)])\s")


class Item(msgspec.Struct, frozen=True):
    """A numbered fix or a sample, with the line number at which it starts."""

    text: str
    line: int


class Body(msgspec.Struct):
    """The sections, in Markdown with each paragraph on one line, and the samples."""

    what: str = ""
    why: str = ""
    harmless: str = ""
    zh_what: str = ""
    zh_why: str = ""
    fixes: list[Item] = []
    zh_fixes: list[Item] = []
    fires: list[Item] = []
    quiet: list[Item] = []


class _Section(msgspec.Struct):
    line: int
    lines: list[tuple[int, str]] = []


def read_body(
    text: str, first_line: int, path: str, *, chinese: bool = True, samples_only: bool = False
) -> tuple[Body, list[PageError]]:
    """Read the body, which starts on line `first_line` of the page. Return its parts and its problems.

    If `chinese` is False, the Chinese section is optional. If `samples_only` is True, all sections are
    optional.
    """
    problems: list[PageError] = []

    def problem(line: int, message: str, remedy: str) -> None:
        problems.append(PageError(path, line, message, remedy))

    body = Body()
    sections = _cut(text, first_line, body, problem)
    last = first_line + text.count("\n")
    needed = chinese or any(name in sections for name in _CHINESE)
    for name, heading in _REQUIRED.items():
        if name not in sections and not samples_only and (needed or name not in _CHINESE):
            problem(last, f"the section '{heading}' is missing", f"add a heading '{heading}' with its text")
    for name, section in sections.items():
        if name == "fix":
            body.fixes = _items(section, problem)
        elif name == "zh_fix":
            body.zh_fixes = _items(section, problem)
        elif name in ("what", "why", "harmless", "zh_what", "zh_why"):
            prose = _unwrap([line for _, line in section.lines])
            if not prose:
                problem(section.line, "the section is empty", "write the section, or remove its heading")
            setattr(body, name, prose)
    if not body.fires:
        remedy = "add a fenced block that starts with ```log fires"
        problem(last, "the page has no sample on which the rule must fire", remedy)
    if not body.quiet and not samples_only:
        remedy = "add a fenced block that starts with ```log quiet"
        problem(last, "the page has no sample on which the rule must not fire", remedy)
    return body, problems


def _cut(text: str, first_line: int, body: Body, problem: _Report) -> dict[str, _Section]:
    """Assign the lines to sections and extract the blocks with samples."""
    sections: dict[str, _Section] = {}
    current = _Section(first_line)
    inside_zh = False
    for piece in _pieces(text, first_line):
        if isinstance(piece, _Fenced):
            if not piece.closed:
                problem(piece.line, "the fenced block is not closed", f"close it with {piece.ticks}")
            if not _take_sample(piece, body, problem):
                current.lines += piece.raw
            continue
        number, line = piece
        if not _HEADING.fullmatch(line):
            current.lines.append(piece)
            continue
        heading = line.rstrip()
        if heading.startswith("## "):
            inside_zh = heading == "## 中文"
        name = _HEADINGS.get(heading) or (_ZH_HEADINGS.get(heading) if inside_zh else None)
        if name is not None:
            current = _Section(number)
            if name in sections:
                problem(number, f"the section '{heading}' occurs twice", "merge the two sections")
            sections[name] = current
        elif not heading.startswith("# "):
            known = ", ".join([*_HEADINGS, *_ZH_HEADINGS])
            problem(number, f"unknown heading '{heading}'", f"use one of: {known}")
    return sections


class _Fenced(msgspec.Struct):
    """A fenced block: the words after the opening fence, the inner lines, and all lines, with the fences."""

    line: int
    ticks: str
    indent: int
    info: list[str]
    inner: list[str] = []
    raw: list[tuple[int, str]] = []
    closed: bool = False


def _pieces(text: str, first_line: int) -> Iterator[_Fenced | tuple[int, str]]:
    """Yield one item for each fenced block and one for each line outside the blocks."""
    fence: _Fenced | None = None
    for number, line in enumerate(text.split("\n"), first_line):
        mark = _FENCE.fullmatch(line)
        info = mark["info"].split() if mark else []
        if fence is not None and mark is not None and info[:1] == ["log"]:
            yield fence  # a new sample begins, but the previous fence was not closed
            fence = None
        if fence is None:
            if mark is None:
                yield number, line
            else:
                fence = _Fenced(number, mark["ticks"], len(mark["indent"]), info, raw=[(number, line)])
            continue
        fence.raw.append((number, line))
        if mark is not None and not info and len(mark["ticks"]) >= len(fence.ticks):
            fence.closed = True
            yield fence
            fence = None
        else:
            indent = min(fence.indent, len(line) - len(line.lstrip(" ")))
            fence.inner.append(line[indent:])
    if fence is not None:
        yield fence


def _take_sample(block: _Fenced, body: Body, problem: _Report) -> bool:
    if block.info[:1] != ["log"]:
        return False
    if block.info[1:] not in (["fires"], ["quiet"]):
        problem(block.line, f"unknown block '{' '.join(block.info)}'", "use 'log fires' or 'log quiet'")
    elif not any(line.strip() for line in block.inner):
        problem(block.line, "the sample is empty", "put the log's lines between the fences")
    elif block.closed:
        samples = body.fires if block.info[1] == "fires" else body.quiet
        samples.append(Item("\n".join(block.inner).strip("\n"), block.line))
    return True


def _items(section: _Section, problem: _Report) -> list[Item]:
    """Return the numbered items of a Fix section and report any other content as a problem."""
    found: list[tuple[int, list[str]]] = []
    fenced = False
    for number, line in section.lines:
        item = _ITEM.fullmatch(line)
        if item is not None and not fenced:
            found.append((number, [item["text"]]))
        elif found and (not line.strip() or line[0] in " \t" or fenced):
            found[-1][1].append(line)
        elif line.strip():
            problem(
                number,
                "Fix must be a numbered list",
                "start each fix with '1. ', and indent its other lines",
            )
            break
        if _FENCE.fullmatch(line):
            fenced = not fenced
    if not found and not any(line.strip() for _, line in section.lines):
        problem(section.line, "Fix must be a numbered list", "start each fix with '1. '")
    return [
        Item(_unwrap([lines[0], *textwrap.dedent("\n".join(lines[1:])).splitlines()]), number)
        for number, lines in found
    ]


def _unwrap(lines: list[str]) -> str:
    """Join the lines of each paragraph. Blank lines, list items, and fenced blocks are not changed."""
    out: list[str] = []
    fenced = False
    fresh = True  # True if the next line starts a new paragraph
    for line in lines:
        if _FENCE.fullmatch(line):
            fenced = not fenced
            out.append(line)
            fresh = True
        elif fenced:
            out.append(line)
        elif not line.strip():
            out.append("")
            fresh = True
        elif fresh or _BULLET.match(line):
            out.append(line.rstrip())
            fresh = False
        else:
            out[-1] = _join(out[-1], line.strip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip("\n")


def _join(left: str, right: str) -> str:
    """Join two lines with a space, except between Chinese characters and next to full-width punctuation."""
    both = left[-1] + right[0]
    return left + right if _TWO_CHINESE.fullmatch(both) or _FULL_WIDTH.search(both) else f"{left} {right}"
