"""``stallwatch rules``: what is known to go wrong, for readers and for authors of rules."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, rule_folders, rules_option, tell, tell_all
from stallwatch.commands.rules_export import export
from stallwatch.commands.rules_list import list_rules
from stallwatch.commands.rules_new import new

if TYPE_CHECKING:
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Line


@click.group()
def rules() -> None:
    """List, show, check, try, draft and export rules.

    \b
    stallwatch rules list
    stallwatch rules show zero3-trace-cache-invalidated
    stallwatch rules check my-rules/
    stallwatch rules test failing.log
    """


@rules.command()
@click.argument("rule", metavar="ID")
@rules_option
@click.pass_obj
def show(app: App, rule: str, rule_dirs: tuple[Path, ...]) -> None:
    """Show the page of one rule: what happened, why, what to do, sample lines.

    Off a terminal it is the page's Markdown, as it stands in the file. If its patterns use fragments, they
    follow in full.
    """
    config = app.config(rules__dirs=rule_dirs)
    page = _page(catalogue_of(config), rule)
    text = Path(page.path).read_text(encoding="utf-8")
    if "${" in text.partition("\n---")[0]:
        text += _patterns_in_full(page)
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    _, _, body = text.removeprefix("---").partition("\n---")
    console = Console()
    console.print(f"[bold]{page.title}[/] · {page.title_zh}", highlight=False)
    console.print(f"{page.id} · {page.family} · {page.role} · {page.harm} · {page.status}", style="dim")
    if page.tags:
        console.print(f"tags: {', '.join(page.tags)}", style="dim")
    console.print(page.path, style="dim", highlight=False)
    console.print(Markdown(body))


def _patterns_in_full(page: RulePage) -> str:
    lists = {"patterns": page.patterns, "requires": page.requires, "unless": page.unless}
    lines = [line for name, found in lists.items() if found for line in (f"{name}:", *map(_item, found))]
    return "\n".join(("", "## Patterns in full", "", "```yaml", *lines, "```", ""))


def _item(pattern: str) -> str:
    return "  - '" + pattern.replace("'", "''") + "'"


@rules.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@rules_option
@click.pass_obj
def check(app: App, folder: Path | None, rule_dirs: tuple[Path, ...]) -> None:
    """Check rule pages: their form, their patterns, and that their samples do what they say.

    Without DIR the packaged rules and the configured folders are checked. Sections that are still to be
    written are told. Exit code 2 when a page is wrong.
    """
    from stallwatch_rules.authoring.checking import check_catalogue
    from stallwatch_rules.pages.catalogue import load_catalogue
    from stallwatch_rules.pages.fixes import unwritten

    config = app.config(rules__dirs=(*rule_dirs, folder) if folder else rule_dirs)
    catalogue = load_catalogue(rule_folders(config))
    problems = check_catalogue(catalogue)
    parts = [part for page in catalogue.pages.values() for part in page.parts]
    pages = len(catalogue.pages)
    if folder is not None:  # the packaged pages were loaded for what the folder's refer to
        problems = [problem for problem in problems if _lies_in(problem.path, folder)]
        pages = sum(_lies_in(part.path, folder) for part in parts)
    tell_all(problems)
    for page in catalogue.pages.values():
        unfinished = unwritten(page) if folder is None or _lies_in(page.path, folder) else []
        if unfinished:
            tell(f"warning: {page.path}: still to be written: {', '.join(unfinished)}")
    click.echo(f"{_count(pages, 'page')}, {_count(len(problems), 'problem')}")
    _exit_with_problems(config.problems or problems)


@rules.command()
@click.option("--rule", metavar="ID", help="Try this rule only.")
@click.argument("file", default="-", type=click.Path(path_type=Path), metavar="[FILE|-]")
@rules_option
@click.pass_obj
def test(app: App, rule: str | None, file: Path, rule_dirs: tuple[Path, ...]) -> None:
    """Print which rules fire on which lines, with what they captured.

    \b
    stallwatch rules test failing.log
    grep -i nccl train.log | stallwatch rules test --rule nccl-watchdog-timeout

    Exit code: 0 when a rule fired, 1 when none did.
    """
    from stallwatch_rules.matching.matcher import Matcher
    from stallwatch_rules.pages.catalogue import Catalogue

    config = app.config(rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    if rule is not None:
        page = _page(catalogue, rule)
        if page.judged:
            tell(f"{rule} has no pattern: it is concluded from a whole run; use stallwatch diagnose")
        catalogue = Catalogue.of([page])
    lines = list(_lines(file))
    hits = Matcher(catalogue).match_stream(lines)
    for index, fired, captures in hits:
        line = lines[index]
        caught = "".join(f" {name}={value!r}" for name, value in captures.items())
        click.echo(f"{line.source}:{line.number}: {fired}{caught}")
    raise click.exceptions.Exit(0 if hits else 1)


rules.add_command(list_rules)
rules.add_command(new)
rules.add_command(export)


def _lines(file: Path) -> Iterator[Line]:
    from stallwatch_rules.lines.reader import LineReader

    name = "-" if str(file) == "-" else str(file)
    reader = LineReader(name)
    if name == "-" and sys.stdin.isatty():
        tell("reading lines from the terminal; Ctrl-D ends them")
    try:
        with click.open_file(name, "rb") as stream:
            while data := stream.read(1 << 20):
                yield from reader.feed(data)
    except OSError as error:
        raise click.UsageError(f"{name}: cannot be read: {error.strerror}; name a file or -") from error
    yield from reader.finish()


def _page(catalogue: Catalogue, rule: str) -> RulePage:
    page = catalogue.pages.get(rule)
    if page is None:
        near = difflib.get_close_matches(rule, list(catalogue.pages), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise click.UsageError(f"no rule {rule!r}; {hint}stallwatch rules list names all")
    return page


def _lies_in(path: str, folder: Path) -> bool:
    return str(Path(path).absolute()).startswith(str(folder.absolute()))


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _exit_with_problems(problems: object) -> None:
    if problems:
        raise click.exceptions.Exit(2)
