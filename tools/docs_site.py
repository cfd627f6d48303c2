"""An MkDocs hook that builds pages of the documentation site from other files in the repository.

The catalogue has a page for each rule and language, with the lines that the rule recognizes. README,
CHANGELOG, and other files at the top of the repository are also pages of the site. If mkdocs.yml contains the
setting `repo_url`, links to files without a page point to this URL. Otherwise, these links become plain text.
The options of a command, as defined in click, replace comments such as ``<!-- options: stallwatch run -->``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from stallwatch_rules.pages.page import RulePage

ROOT = Path(__file__).resolve().parents[1]
#: Files outside docs/ that are pages of the site, with the names of their pages.
ELSEWHERE = {
    "README.md": "index.md",
    "README.zh.md": "zh/index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "benches.md",
}
_FIRST = 6  #: number of samples that a page shows first
_FIX = "\x00"  #: placeholder for a fix while its condition is converted to text
_CATALOGUE = "rules/stallwatch_rules/catalogue/"
#: Pages that are irrelevant when a reader searches for an error or an option.
_UNSEARCHED = ("decisions/", "benches", "benchmark", "changelog", "scoreboard", "versions")
_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)"
)
_FENCE = re.compile(r"^```log (fires|quiet)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CONDITION = re.compile(r"^(\d+\. )\{([^{}]*)\} *", re.MULTILINE)
_WIDE = r"\u3000-\u303f\uff00-\uffef"  # full-width punctuation
_CHINESE_BREAK = re.compile(
    rf"(?<=[{_WIDE}\u4e00-\u9fff])\n *(?=[{_WIDE}\u4e00-\u9fff])|(?<=[{_WIDE}])\n *(?=[A-Za-z`])"
)
_OPTIONS = re.compile(r"<!-- options: stallwatch ?([\w ]*?) -->")

WORDS = {
    "en": {
        "catalogue": "Rules",
        "about": "Every failure that Stallwatch recognizes.",
        "find": "Paste an error message or the end of a log. The text does not leave your browser.",
        "none": "No rule matches. <code>stallwatch diagnose LOG</code> reads the entire log and finds more.",
        "head": "| rule | title | impact |",
        "fires": "Lines that the rule recognizes",
        "more": "More lines that the rule recognizes",
        "otherwise": "Otherwise: ",
        "quiet": "Similar lines with a different meaning",
        "judged": "No single log line shows this failure. Stallwatch infers it from the entire run.",
        "references": "References",
        "explains": "Findings that this rule explains",
        "other": "[中文](../zh/catalogue/{id}.md)",
        "by-progress": "judged by the run's progress",
    },
    "zh": {
        "catalogue": "规则",
        "about": "Stallwatch 能识别的所有故障。",
        "find": "把报错或日志末尾几行粘贴到这里，内容只在浏览器里处理。",
        "none": "没有匹配的规则。<code>stallwatch diagnose LOG</code> 会读取完整的日志，能识别更多问题。",
        "head": "| 规则 | 问题 | 影响 |",
        "fires": "能识别的日志行",
        "more": "更多能识别的日志行",
        "otherwise": "其他情况：",
        "quiet": "看起来相似但含义不同的日志行",
        "judged": "没有哪一行日志能单独说明这个问题，Stallwatch 根据整个训练过程推断得出。",
        "references": "参考资料",
        "explains": "由这个问题引起的表象（同时命中时，不作为原因）",
        "other": "[English](../../catalogue/{id}.md)",
        "fatal": "致命",
        "degrading": "劣化",
        "harmless": "无害",
        "by-progress": "取决于训练是否推进",
        "cause": "原因",
        "symptom": "表象",
        "wrapper": "启动器汇总",
        "notice": "提示",
    },
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are built from other files to the site."""
    from mkdocs.structure.files import File

    made = {
        name: relinked(ROOT.joinpath(path).read_text(encoding="utf-8"), path, name, config.repo_url)
        for path, name in ELSEWHERE.items()
    }
    made["zh/index.md"] = joined(made["zh/index.md"])
    for name, text in [*made.items(), *catalogue_pages()]:
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Insert the options of commands and adjust the links to files outside docs/."""
    uri = page.file.src_uri
    if uri.startswith(_UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    if page.file.generated_by:
        return markdown
    if uri == "decisions/README.md":
        markdown += "\n" + "".join(f"* [{title}]({name})\n" for name, title in decisions())
    markdown = _OPTIONS.sub(lambda found: options_of(found[1].split()), markdown)
    return relinked(markdown, f"docs/{uri}", uri, config.repo_url)


def relinked(text: str, path: str, name: str, repo_url: str | None) -> str:
    """Return the text of the file `path`, with its links adjusted to the page `name`.

    The argument `path` is relative to the repository. The argument `name` is the name of a page of the site.
    """

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if not target or ":" in target:
            return found[0]
        aim = os.path.normpath(PurePosixPath(path).parent / target).replace(os.sep, "/")
        page = site_page(aim)
        if page is None:
            if repo_url:
                return f"[{found['text']}]({repo_url.rstrip('/')}/blob/main/{aim}{found['anchor'] or ''})"
            return found["text"]
        address = os.path.relpath(page, PurePosixPath(name).parent).replace(os.sep, "/")
        return f"{found['image']}[{found['text']}]({address}{found['anchor'] or ''})"

    return _LINK.sub(link, text)


def site_page(path: str) -> str | None:
    """Return the site's page for a file in the repository, or ``None`` if the file has no page."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith(_CATALOGUE):
        return f"catalogue/{PurePosixPath(path).name}"
    if path in ("docs/decisions", "docs/decisions/"):
        return "decisions/README.md"
    inside = path.removeprefix("docs/")
    return inside if inside != path and (ROOT / path).is_file() else None


def decisions() -> Iterator[tuple[str, str]]:
    """Yield the filename and the title of each decision record."""
    for file in sorted((ROOT / "docs/decisions").glob("[0-9]*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0]
        yield file.name, title.removeprefix("# ")


# ---------------------------------------------------------------- the catalogue


def catalogue_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each rule page and of each list of rules, in both languages."""
    from stallwatch_rules.pages.catalogue import folder_of_pack, load_catalogue, packs

    catalogue = load_catalogue([folder_of_pack(name) for name in packs()])
    pages = sorted(catalogue.pages.values(), key=lambda page: (page.family, page.id))
    for language, folder in (("en", "catalogue"), ("zh", "zh/catalogue")):
        for page in pages:
            yield f"{folder}/{page.id}.md", rule_page(page, language)
        yield f"{folder}/index.md", rule_list(pages, language)
    yield "catalogue/patterns.json", patterns(pages)


def patterns(pages: list[RulePage]) -> str:
    """Return the JSON that docs/javascripts/rules.js uses to find the rules for a line. Causes come first."""
    roles = ("cause", "symptom", "wrapper", "notice")
    named = ("id", "title", "title_zh", "patterns", "unless")
    pages = sorted(pages, key=lambda page: roles.index(page.role))
    return json.dumps([{name: getattr(page, name) for name in named} for page in pages if not page.judged])


def rule_list(pages: list[RulePage], language: str) -> str:
    """Return the list of all rules, grouped by family."""
    words = WORDS[language]
    data = "patterns.json" if language == "en" else "../../catalogue/patterns.json"
    finder = (
        f'<textarea id="rules-find" rows="5" data-rules="{data}" placeholder="{words["find"]}" '
        f'aria-label="{words["find"]}"></textarea><ol id="rules-found"></ol>'
        f'<p id="rules-none" hidden>{words["none"]}</p>'
    )
    lines = [f"# {words['catalogue']}", "", words["about"], "", finder]
    family = ""
    for page in pages:
        if page.family != family:
            family = page.family
            lines += ["", f"## {family}", "", words["head"], "|---|---|---|"]
        title = (page.title if language == "en" else page.title_zh).replace("|", "\\|")
        lines.append(f"| [{page.id}]({page.id}.md) | {title} | {words.get(page.harm, page.harm)} |")
    return "\n".join([*lines, ""])


def rule_page(page: RulePage, language: str) -> str:
    """Return the text of one rule's page: the fixes, and the lines that the rule recognizes."""
    words = WORDS[language]
    text = Path(page.path).read_text(encoding="utf-8").removeprefix("---").partition("\n---\n")[2]
    english, _, chinese = _FENCE.sub("", text).partition("\n## 中文\n")
    if language == "en" or not chinese.strip():
        title, prose = page.title, "## " + english.partition("\n## ")[2]
    else:
        title, prose = page.title_zh, joined(re.sub(r"^### ", "## ", chinese, flags=re.MULTILINE))
    prose = _CONDITION.sub(lambda found: found[1] + condition(found[2], language), prose)
    prose = re.sub(r"\n{3,}", "\n\n", prose).strip()
    facts = (page.family, words.get(page.role, page.role), words.get(page.harm, page.harm))
    facts_line = " · ".join((f"`{page.id}`", *facts, words["other"].format(id=page.id)))
    parts = ["---\nhide: [navigation]\n---", f"# {title}", facts_line, prose]
    samples = list(dict.fromkeys(text for part in page.parts for text in part.fires))
    parts += [words["judged"]] if page.judged else []
    once = "" if language == "en" else " { data-search-exclude }"  # the English page contains the same lines
    parts += [f"## {words['fires']}{once}", fenced("\n".join(samples[:_FIRST]))]
    if samples[_FIRST:]:  # in a separate section, because the search ranks short sections higher
        parts += [f"## {words['more']}{once}", fenced("\n".join(samples[_FIRST:]))]
    parts += [f"## {words['quiet']} {{ data-search-exclude }}", fenced("\n".join(page.quiet))]
    if page.explains:
        parts += [f"## {words['explains']}", "\n".join(f"* [{rule}]({rule}.md)" for rule in page.explains)]
    if page.references:
        parts += [
            f"## {words['references']}",
            "\n".join(f"* {_cited(reference)}" for reference in page.references),
        ]
    return "\n\n".join([*parts, ""])


def joined(chinese: str) -> str:
    """Remove the line breaks in Chinese sentences, which a browser would show as spaces."""
    return _CHINESE_BREAK.sub("", chinese)


def condition(text: str, language: str) -> str:
    """Return the conditions of a fix as text."""
    from stallwatch_rules.locale import render
    from stallwatch_rules.pages.fixes import parse_fix

    fix = parse_fix(f"{{{text}}} {_FIX}")
    worded = _FIX
    for part in reversed(fix.conditions):
        worded = worded if part.kind == "else" else part.worded(worded)
    before = WORDS[language]["otherwise"] if fix.otherwise else ""
    return before + render(worded, language).partition(_FIX)[0]


def fenced(text: str) -> str:
    """Return the text as a fenced Markdown code block."""
    ticks = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"{ticks}text\n{text.rstrip()}\n{ticks}"


def _cited(reference: str) -> str:
    return f"<{reference}>" if reference.startswith(("http://", "https://")) else reference


# ---------------------------------------------------------------- the command line


def options_of(words: list[str]) -> str:
    """Return a table of a command's options. For a group of commands, return a table for each command."""
    from stallwatch.cli import cli

    command: click.Command = cli
    context = click.Context(cli, info_name="stallwatch")
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None, f"there is no command {word!r}"
        command, context = found, click.Context(found, info_name=word, parent=context)
    if isinstance(command, click.Group) and words:
        parts = []
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts += [f"### stallwatch {' '.join([*words, name])}", inner.get_short_help_str(300)]
            parts += [options_of([*words, name])]
        group_table = _table(command, context) if command.params else ""
        return "\n\n".join(part for part in (group_table, *parts) if part)
    return _table(command, context)


def _table(command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    rows: list[str] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            flags, about = (part.replace("|", "\\|") for part in record)
            rows.append(f"| `{flags}` | {about} |")
    head = ["", "| option | description |", "|---|---|"] if rows else []
    return "\n".join([f"`{context.command_path} {usage}`", *head, *rows])


if __name__ == "__main__":
    sys.exit("a hook of mkdocs: make docs")
