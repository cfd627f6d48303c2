"""Restore lines that were changed after programs printed them.

If one process prints while another process has not ended its line, one line contains text from both
processes. Forums and blogs replace ``'NoneType' object`` with ``‘NoneType’ object``. Text from the source of
a web page contains ``&#39;``. A Chinese input method produces ``ValueError：``. A server's response or a JSON
log can contain a whole traceback in one string. Notebooks show the metrics of transformers' Trainer as a
table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stallwatch_rules.lines.training_data import is_training_data
from stallwatch_rules.records import Line
from stallwatch_rules.text.lazy import lazy
from stallwatch_rules.text.numbers import NUMBER

# Positions at which lines are split: after the end of a progress bar, before the prefix of another rank, and
# before a traceback that does not directly follow its own prefix.
_INTERLEAVED = lazy(
    r"(?<=\])(?<=it\]|/s\])(?=[^\s\]),])|(?<=[^\s:\]])(?=\[(?:rank|default)\d+\]:)"
    r"|(?<=[^\s\"':])(?=Traceback \(most recent call last\):)"
)
_BAR_ENDS = ("it]", "/s]")
# A message that follows a progress bar whose brackets contain metrics, as in Lightning. If more metrics
# follow the bar, the line is not split.
_BEHIND_POSTFIX = lazy(
    r"(\d/\d{1,15} \[[\d:]+<[^\[\]]{1,400}=[^\[\]]{1,80}\])(?=[`A-Z*])(?!.*(?i:\||loss|step|iter))"
)
# Python writes the name of an exception, the colon, and the message separately. If several processes fail at
# the same time, their output is "KeyErrorKeyError: : 'text'". The message can also be repeated as often as
# the name.
_AT_ONCE = lazy(
    r"(?<![\w.])(?P<name>(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt))(?P<more>(?P=name)+)"
    r"(?:: ){2,}(?P<message>\S.*)"
)


def lines_of_writers(text: str) -> list[str]:
    """If several processes wrote a line, split the line by process. Most lines have only one writer."""
    if ": : " in text:
        text = _AT_ONCE.sub(_of_one, text, count=1)
    if ("]" in text and _may_be_interleaved(text)) or "Traceback" in text:
        return _INTERLEAVED.split(text)
    if "<" in text and "]" in text[:-1]:
        found = _BEHIND_POSTFIX.search(text)
        if found is not None:
            return [text[: found.end()], text[found.end() :]]
    return [text]


def _of_one(found: re.Match[str]) -> str:
    """If several processes wrote the same exception to one line, return a single copy of the exception."""
    name, message = found["name"], found["message"]
    writers = 1 + len(found["more"]) // len(name)
    once = message[: len(message) // writers]
    return f"{name}: {once if once * writers == message else message}"


def _may_be_interleaved(text: str) -> bool:
    """Return whether the middle of a line contains the end of a progress bar or the prefix of a rank."""
    for word in _BAR_ENDS:
        if -1 < text.find(word) < len(text) - len(word):
            return True
    return text.find("[rank", 1) > 0 or text.find("[default", 1) > 0


COLON = "："
#: Characters that programs print, keyed by the typographic characters that replace them on web pages.
TYPESET = {"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "\u3000": " "}
_TYPESET = str.maketrans({**TYPESET, "\u200b": None, "\ufeff": None})
_IS_TYPESET = lazy("[‘’“”\u00a0\u3000\u200b\ufeff]")
_ENTITY = lazy(r"&(lt|gt|quot|apos|nbsp|#0?39|#x27|#34|amp);")
_ENTITIES = {"lt": "<", "gt": ">", "quot": '"', "#34": '"', "nbsp": " ", "amp": "&"}
ESCAPED_END = "\\n"
MAX_PIECES = 200  #: maximum number of lines into which one string is split

_NAMED = lazy(r"(\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning))：\s?", re.ASCII)
# A person who types a full-width colon might also type the exception's name differently, as in "value
# error". However, "value error：0.02" is a metric.
_TYPED = lazy(
    r"\s*(assertion|runtime|value|type|attribute|import) ?error：\s?(?=[^\W\d]|[\"'`(\[])",
    re.ASCII | re.IGNORECASE,
)
# Keys whose value is the text of an exception. The response of a sandbox or a tool ("stderr", "output") is
# data.
_KEY = lazy(
    r"""['"](?:message|msg|detail|exception|exc_info|traceback|stack_?trace|error_message)['"]: ?"""
    r"""(?P<quote>['"])"""
)
_VALUE = {"'": re.compile(r"(?:[^'\\]|\\.)*"), '"': re.compile(r'(?:[^"\\]|\\.)*')}
_RAISED = lazy(
    r"(?:^|\\n)(?:Traceback \(most recent call last\):|(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Failed): )",
    re.ASCII,
)
_ESCAPE = lazy(r"\\([\\'\"t])")


def with_plain_quotes(text: str) -> str:
    """Replace typographic quotes and spaces from web pages with the characters that programs print."""
    if not text.isascii() and _IS_TYPESET.search(text):
        text = text.translate(_TYPESET)
    if "&" in text and ";" in text:
        text = _ENTITY.sub(lambda found: _ENTITIES.get(found[1], "'"), text)
    return text


def with_ascii_colon(text: str) -> str:
    """If a line starts with an exception's name, replace the colon after the name with an ASCII colon."""
    found = _NAMED.match(text)
    if found is not None:
        return f"{found[1]}: {text[found.end() :]}"
    typed = _TYPED.match(text)
    if typed is None:
        return text
    return f"{typed[1].capitalize()}Error: {text[typed.end() :]}"


def exception_lines(text: str) -> list[str]:
    """If a string in a line contains an exception, split the line into the lines of this exception.

    The text in front of the string comes first. A line that has no such string is not changed.
    """
    found = _KEY.search(text)
    if found is None or is_training_data(text):
        return [text]
    value = _VALUE[found["quote"]].match(text, found.end())
    if value is None or ESCAPED_END not in value[0] or _RAISED.search(value[0]) is None:
        return [text]
    lines = [_ESCAPE.sub(_unescaped, line) for line in value[0].split(ESCAPED_END, MAX_PIECES)]
    before = text[: found.start()]
    return [before, *lines] if re.search(r"\w", before) else lines


def _unescaped(found: re.Match[str]) -> str:
    return "\t" if found[1] == "t" else found[1]


HEAD = "Training Loss"  #: a column that every table of metrics has
_COUNTERS = {"Step": "step", "Epoch": "epoch"}
_COLUMNS = {**_COUNTERS, HEAD: "loss", "Validation Loss": "eval_loss"}
_CELLS = lazy(r" {0,40}\| {0,40}|\t| {2,}")
_COUNT = lazy(r"\d{1,15}(?:\.\d+)?")
_METRIC = lazy(NUMBER)
_TABLE_RULE = lazy(r"[\s|:+-]+")  # row that separates the header from the other rows of a Markdown table


class MetricTables:
    """A parser for the tables in which notebooks show metrics. It reads the lines of one source."""

    def __init__(self) -> None:
        self._names: list[str] = []  # columns of the table that has begun

    def take(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines, in which dictionaries replace the rows of metric tables.

        Usually, the trainer prints such dictionaries instead of a table.
        """
        return [self._row(line) if self._names or HEAD in line.text else line for line in lines]

    def _row(self, line: Line) -> Line:
        cells = _cells(line.text)
        if HEAD in cells and cells[0] in _COUNTERS:
            self._names = [_COLUMNS.get(cell, _column(cell)) for cell in cells]
            return line
        if _TABLE_RULE.fullmatch(line.text):
            return line
        if len(cells) != len(self._names) or not _COUNT.fullmatch(cells[0]):
            self._names = []
            return line
        numbers = [
            f"'{name}': {cell.replace(',', '')}"
            for name, cell in zip(self._names, cells, strict=True)
            if _METRIC.fullmatch(cell)
        ]
        return msgspec.structs.replace(line, text="{" + ", ".join(numbers) + "}")


def _cells(text: str) -> list[str]:
    return _CELLS.split(text.strip().removeprefix("|").removesuffix("|").strip())


def _column(cell: str) -> str:
    """Return the key for a column in the trainer's dictionaries, such as ``rewards/chosen`` or ``kl``."""
    return re.sub(r"[^\w/]", "_", cell.lower().replace(" / ", "/"))
