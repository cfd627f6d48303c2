"""Find private words, and words that the style guide advises against: ``python tools/plain_words.py``.

If ``--sample SEED`` is set, print random passages instead, for a reader who rates them.

`plain_words.toml` lists the words with their replacements and the contexts in which they are correct. The
check covers the names in Python code, docstrings, comments, help text, the documentation, the rule pages, and
the English messages. It ignores code spans, code blocks, and links.
"""

from __future__ import annotations

import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import click

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
KINDS = ("names", "prose")
#: Number of texts that `--sample` draws, by group.
DRAWN = {"docstrings": 25, "comments": 15, "documentation": 20, "what users see": 40, "Chinese": 40}
CONTEXT = (6, 3)  #: number of lines that `--sample` prints before and after a text
_SPAN = re.compile(r"``.+?``|`[^`\n]+`|\]\([^)\s]*\)|https?://\S+|<!--.*?-->|\{\w*\}", re.DOTALL)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MESSAGE = re.compile(r'^\s*"([^"]+)": "(.*)",?$')
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_FENCED = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CHINESE = re.compile("[一-鿿]")
_NO_TEXT = re.compile(r"#|<!--|type: ")
_COMMENT = re.compile(r"(?:^|\s)#:? ")
_LIST_ITEM = re.compile(r"^\s*(?:[*+-]|\d+\.|#+|\||>)\s")


@dataclass(frozen=True)
class Word:
    """A word or phrase, and its replacement."""

    pattern: re.Pattern[str]
    instead: str
    kinds: tuple[str, ...]
    right: tuple[re.Pattern[str], ...]  #: contexts where the word has its usual sense
    skipped: tuple[str, ...]  #: files where the word is not searched for

    def hits(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the occurrences of the word in `text`, except in contexts where the word is correct."""
        for found in self.pattern.finditer(text):
            usual = (place.span() for sense in self.right for place in sense.finditer(text))
            if not any(start <= found.start() and found.end() <= end for start, end in usual):
                yield found


class Text(NamedTuple):
    """A passage: a paragraph or a name. Each line is stored with its line number in the file."""

    kind: str
    lines: list[tuple[int, str]]


class Hit(NamedTuple):
    """An occurrence of a word in a file."""

    path: str
    line: int
    word: Word
    found: str
    context: str

    def __str__(self) -> str:
        """Return the line that is printed on the terminal."""
        return f"{self.path}:{self.line}: {self.found}: write {self.word.instead}: …{self.context}…"


def load() -> list[Word]:
    """Read the list of words. A space in a pattern also matches a line break."""
    words = []
    for table in tomllib.loads(LIST.read_text(encoding="utf-8"))["word"]:
        words.append(
            Word(
                _compiled(rf"\b(?:{table['word']})\b"),
                table["instead"],
                tuple(table.get("in", KINDS)),
                tuple(map(_compiled, table.get("right", []))),
                tuple(table.get("skip", [])),
            )
        )
    return words


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE)


def files() -> list[str]:
    """Return the files to check. Historical records and text that other programs print are excluded."""
    past = ("CHANGELOG.md", "docs/decisions/", "docs/reviews/", "tests/", "README.zh.md")
    names = _listed("*.py", "*.md", "rules/stallwatch_rules/locale/en/*.json")
    return [name for name in names if not name.startswith(past)]


def _listed(*patterns: str) -> list[str]:
    command = ["git", "ls-files", *patterns]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def check(names: Iterable[str], words: list[Word]) -> Iterator[Hit]:
    """Yield the hits in these files, in order."""
    for name in names:
        found = list(texts(name, (ROOT / name).read_text(encoding="utf-8")))
        whole = "\n".join(line for text in found for _, line in text.lines)
        here = [word for word in words if not any(fnmatch(name, glob) for glob in word.skipped)]
        here = [word for word in here if word.pattern.search(whole)]  # most files contain few of the words
        for text in found:
            yield from hits(name, text, [word for word in here if text.kind in word.kinds])


def hits(name: str, text: Text, words: list[Word]) -> Iterator[Hit]:
    """Yield the hits in one passage from a file."""
    joined = "\n".join(line for _, line in text.lines)
    for word in words:
        for found in word.hits(joined):
            line = text.lines[joined.count("\n", 0, found.start())][0]
            context = joined[max(0, found.start() - 40) : found.end() + 40]
            yield Hit(name, line, word, " ".join(found[0].split()), " ".join(context.split()))


def texts(name: str, source: str) -> Iterator[Text]:
    """Yield the passages in a file."""
    if name.endswith(".py"):
        yield Text("names", [(1, spelled(Path(name).stem))])
        yield from _python(source)
    elif name.endswith(".json"):
        for number, line in enumerate(source.splitlines(), 1):
            if message := _MESSAGE.match(line):
                yield Text("prose", [(number, _plain(message[2]))])
    else:
        yield from _markdown(source)


def spelled(name: str) -> str:
    """Return the words of an identifier in lowercase, separated by spaces."""
    return " ".join(_WORD.findall(name)).lower()


def _plain(text: str) -> str:
    """Replace code spans and links with spaces, so that each line keeps its length."""
    return _SPAN.sub(lambda found: re.sub(r"[^\n]", " ", found[0][:-1]) + "~", text)


def _python(source: str) -> Iterator[Text]:
    lines = source.split("\n")
    passing: set[ast.AST] = set()  # names in a comprehension or a lambda exist only for a line
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.comprehension):
            passing.update(ast.walk(node.target))
        elif isinstance(node, ast.Lambda):
            passing.update(ast.walk(node.args))
        for place, name in () if node in passing else _defined(node):
            yield Text("names", [(place, spelled(name))])
        for string in _strings(node):
            yield from _paragraphs(enumerate(_plain(_segment(lines, string)).split("\n"), string.lineno))
    yield from _comments(source)


def _segment(lines: list[str], node: ast.expr) -> str:
    """Return the source of a node. `ast.get_source_segment` would split the whole file for each node."""
    last = node.end_lineno or node.lineno
    quoted = lines[node.lineno - 1 : last]
    quoted[-1] = quoted[-1].encode()[: node.end_col_offset].decode()  # the offsets count bytes
    quoted[0] = quoted[0].encode()[node.col_offset :].decode()
    return "\n".join(quoted)


def _defined(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.lineno, node.name
    elif isinstance(node, ast.arg):
        yield node.lineno, node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.lineno, node.attr


def _strings(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield docstrings and the help text of options."""
    candidates: list[ast.expr] = []
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if node.body and isinstance(node.body[0], ast.Expr):
            candidates = [node.body[0].value]
    elif isinstance(node, ast.keyword) and node.arg in ("help", "about"):
        candidates = [node.value]
    for value in candidates:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value


def _comments(source: str) -> Iterator[Text]:
    """Yield the comments. Consecutive lines that contain only comments form one passage."""
    block: list[tuple[int, str]] = []
    is_open = False  # True if the next line can continue the block
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_alone = token.line.strip() == token.string
            if block and not (is_open and is_alone and block[-1][0] == token.start[0] - 1):
                yield Text("prose", block)
                block = []
            is_open = is_alone
            block.append((token.start[0], _plain(token.string.lstrip("#: "))))
    if block:
        yield Text("prose", block)


def _paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[Text]:
    paragraph: list[tuple[int, str]] = []
    for number, line in lines:
        if paragraph and (not line.strip() or _LIST_ITEM.match(line)):
            yield Text("prose", paragraph)
            paragraph = []
        if line.strip():
            paragraph.append((number, line))
    if paragraph:
        yield Text("prose", paragraph)


def _markdown(source: str) -> Iterator[Text]:
    """Yield the title and the paragraphs of a page, without code blocks."""
    text = _FRONT.sub(lambda found: re.sub(r"^(?!title:).*$", "", found[0], flags=re.M), source)
    text = _FENCED.sub(_blank, text)
    text = text.partition("\n## 中文\n")[0]
    yield from _paragraphs(enumerate(_plain(text).split("\n"), 1))


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "", found[0])


def sample(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield the group, location, and source of random passages. `DRAWN` sets their number for each group.

    Lines before and after a passage are included, because a docstring is read together with its function.
    ``>`` marks the lines of the passage itself.
    """
    groups: dict[str, list[tuple[str, str]]] = {group: [] for group in DRAWN}
    for name in [*files(), *_listed("rules/stallwatch_rules/locale/zh/*.json")]:
        source = (ROOT / name).read_text(encoding="utf-8")
        lines = source.split("\n")
        is_chinese = "/zh/" in name
        for text in texts(name, source):
            group = "Chinese" if is_chinese else _group(name, lines[text.lines[0][0] - 1])
            if text.kind == "prose" and _is_rated(text, is_chinese):
                groups[group].append(_in_context(name, lines, text))
        english, _, chinese = source.partition("\n## 中文\n")
        section = enumerate(_FENCED.sub(_blank, chinese).split("\n"), english.count("\n") + 3)
        groups["Chinese"] += [
            _in_context(name, lines, text) for text in _paragraphs(section) if _is_rated(text, True)
        ]
    for group, texts_of in groups.items():
        for place, quoted in random.Random(f"{seed}/{group}").sample(texts_of, DRAWN[group]):
            yield group, place, quoted


def _is_rated(text: Text, is_chinese: bool) -> bool:
    """Return True if a passage is long enough to rate. Headings, code, and type comments are not rated."""
    plain = "\n".join(line for _, line in text.lines)
    return len((_CHINESE if is_chinese else _WORD).findall(plain)) > 3 and not _NO_TEXT.match(plain)


def _in_context(name: str, lines: list[str], text: Text) -> tuple[str, str]:
    """Return the location of a passage, and its lines together with the lines before and after them."""
    before, after = CONTEXT
    first, last = text.lines[0][0], text.lines[-1][0]
    numbers = range(max(1, first - before), min(len(lines), last + after) + 1)
    marked = [f"{'>' if first <= number <= last else ' '} {lines[number - 1]}" for number in numbers]
    return f"{name}:{first}", "\n".join(marked)


def _group(name: str, line: str) -> str:
    if name.endswith(".py"):
        return "comments" if _COMMENT.search(line) else "docstrings"
    return "documentation" if name.startswith("docs/") or "/" not in name else "what users see"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1)
@click.option("--word", "only", metavar="TEXT", help="Look only for the entries that match TEXT.")
@click.option("--count", is_flag=True, help="Count the hits of each word.")
@click.option("--sample", "seed", type=int, metavar="SEED", help="Print random texts for a rating instead.")
def main(paths: tuple[str, ...], only: str | None, count: bool, seed: int | None) -> None:
    """Print the locations and the replacements of listed words. The exit code is 1 if there are any."""
    if seed is not None:
        for number, (group, place, quoted) in enumerate(sample(seed), 1):
            click.echo(f"[{number}] {group}: {place}\n{quoted}\n")
        return
    words = [word for word in load() if not only or word.pattern.fullmatch(only)]
    names = [name for name in files() if not paths or name.startswith(paths)]
    places = list(check(names, words))
    if count:
        counts = Counter(hit.word for hit in places)
        for word in words:
            click.echo(f"{counts[word]:6} {', '.join(word.kinds)}: {word.pattern.pattern}")
    else:
        for hit in places:
            click.echo(hit)
    sys.exit(bool(places))


if __name__ == "__main__":
    main()
