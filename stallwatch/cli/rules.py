"""Implement ``stallwatch rules``: commands for users of the catalogue and for authors of rules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import (
    FOLDER,
    PATH,
    App,
    Group,
    any_key,
    catalogue_of,
    print_line,
    print_notice,
    print_notices,
    rules_option,
    write_text,
)
from stallwatch.config.handover import rule_folders
from stallwatch.config.loading import Setting
from stallwatch.config.values import did_you_mean, nearest

if TYPE_CHECKING:
    from rich.console import Console

    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.pages.page import RulePage
    from stallwatch_rules.records import Line

_STYLES = {"fatal": "red", "degrading": "yellow", "harmless": "green", "by-progress": "cyan"}
_STATUS = ("stable", "incubating", "retired")


@click.group(cls=Group)
def rules() -> None:
    """List, show, check, test, draft, and export rules.

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
def show(app: App, rule: str) -> None:
    """Show the page of one rule: the explanation, the fixes, and sample lines.

    If the output is not a terminal, the page's Markdown is printed unchanged. If the patterns use fragments,
    the full patterns follow.
    """
    config = app.config()
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
    lists = {
        "patterns": page.patterns,
        "requires": page.requires,
        "unless": page.unless,
        "when": page.when,
        "quotes": page.quotes,
    }
    lines = [line for name, found in lists.items() if found for line in (f"{name}:", *map(_item, found))]
    return "\n".join(("", "## Patterns in full", "", "```yaml", *lines, "```", ""))


def _item(pattern: str) -> str:
    return "  - '" + pattern.replace("'", "''") + "'"


@rules.command()
@click.argument("folder", required=False, type=PATH, metavar="[DIR]")
@rules_option
@click.pass_obj
def check(app: App, folder: Path | None) -> None:
    """Check rule pages: their format, their patterns, and whether the patterns match the samples.

    If you omit DIR, the packaged rules and the configured folders are checked. Missing sections are listed.
    Exit code: 2 if a page has a mistake.
    """
    from stallwatch_rules.authoring.checking import check_catalogue
    from stallwatch_rules.pages.catalogue import load_catalogue
    from stallwatch_rules.pages.fixes import placeholder_headings

    if folder is not None:
        named = app.flags.get("rules.dirs", Setting((), "")).value
        app.flags["rules.dirs"] = Setting((*named, folder), "[DIR]")
    config = app.config()
    catalogue = load_catalogue(rule_folders(config))
    problems = check_catalogue(catalogue)
    parts = [part for page in catalogue.pages.values() for part in page.parts]
    pages = len(catalogue.pages)
    if folder is not None:  # packaged pages are loaded only because the folder's pages can refer to them
        problems = [problem for problem in problems if _lies_in(problem.path, folder)]
        pages = sum(_lies_in(part.path, folder) for part in parts)
    print_notices(problems)
    for page in catalogue.pages.values():
        unfinished = placeholder_headings(page) if folder is None or _lies_in(page.path, folder) else []
        if unfinished:
            print_notice(f"warning: {page.path}: sections not written yet: {', '.join(unfinished)}")
    click.echo(f"{_count(pages, 'page')}, {_count(len(problems), 'problem')}")
    if config.problems or problems:
        raise click.exceptions.Exit(2)


@rules.command()
@click.option("--rule", metavar="ID", help="Test only this rule.")
@click.argument("file", default="-", type=PATH, metavar="[FILE|-]")
@rules_option
@click.pass_obj
def test(app: App, rule: str | None, file: Path) -> None:
    """Print the lines on which rules fire, with the rules' IDs and captures.

    \b
    stallwatch rules test failing.log
    grep -i nccl train.log | stallwatch rules test --rule nccl-collective-timeout

    Exit code: 0 if a rule fired, otherwise 1.
    """
    from stallwatch_rules.matching.matcher import Matcher
    from stallwatch_rules.pages.catalogue import Catalogue

    config = app.config()
    catalogue = catalogue_of(config)
    if rule is not None:
        page = _page(catalogue, rule)
        if page.judged:
            print_notice(f"{rule} has no pattern: it is inferred from an entire run; use stallwatch diagnose")
        catalogue = Catalogue.of([page])
    lines = list(_lines(file))
    hits = Matcher(catalogue).match_stream(lines)
    for index, fired, captures in hits:
        line = lines[index]
        caught = "".join(f" {name}={value!r}" for name, value in captures.items())
        print_line(f"{line.source}:{line.number}: {fired}{caught}")
    raise click.exceptions.Exit(0 if hits else 1)


def _lines(file: Path) -> Iterator[Line]:
    from stallwatch_rules.lines.reader import LineReader

    name = "-" if str(file) == "-" else str(file)
    reader = LineReader(name)
    if name == "-" and sys.stdin.isatty():
        print_notice("reading lines from the terminal; to end the input, press Control+D")
    try:
        with click.open_file(name, "rb") as stream:
            while data := stream.read(1 << 20):
                yield from reader.feed(data)
    except OSError as error:
        reason = f"{name}: cannot be read: {error.strerror}"
        raise click.UsageError(f"{reason}; specify the path of a file, or - for standard input") from error
    yield from reader.finish()


def _page(catalogue: Catalogue, rule: str) -> RulePage:
    page = catalogue.pages.get(rule)
    if page is None:
        from stallwatch_rules.pages.catalogue import packs_by_rule

        if pack := packs_by_rule().get(rule):
            raise click.UsageError(f"rule {rule!r} is in the pack {pack}; add --rules-pack {pack}")
        hint = did_you_mean(nearest(rule, catalogue.pages, cutoff=0.4))
        raise click.UsageError(f"no rule {rule!r}; {hint}to list all rules, run stallwatch rules list")
    return page


def _lies_in(path: str, folder: Path) -> bool:
    return Path(path).absolute().is_relative_to(folder.absolute())


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


@rules.command(name="list")
@click.option(
    "--family", "families", multiple=True, metavar="NAME", help="List only this family; can be repeated."
)
@click.option(
    "--status", "states", multiple=True, type=click.Choice(_STATUS), help="List only rules with this status."
)
@rules_option
@click.pass_obj
def list_rules(app: App, families: tuple[str, ...], states: tuple[str, ...]) -> None:
    """List every rule with its ID, family, role, harm, status, and title.

    On a terminal, the output is a table for each family. Otherwise, tabs separate the columns.

    \b
    stallwatch rules list --family collectives
    stallwatch rules list --status incubating
    """
    config = app.config()
    catalogue = catalogue_of(config)
    pages = sorted(catalogue.pages.values(), key=lambda page: (page.family, page.id))
    known = sorted({page.family for page in pages})
    for family in families:
        if family not in known:
            hint = did_you_mean(nearest(family, known, cutoff=0.4))
            raise click.UsageError(f"no family {family!r}; {hint}the families are: {', '.join(known)}")
    chosen = [
        page
        for page in pages
        if (not families or page.family in families) and (not states or page.status in states)
    ]
    language = config["ui.language"]
    if sys.stdout.isatty():
        from rich.console import Console

        print_tables(chosen, Console(), language)
    else:
        for page in chosen:
            columns = (page.id, page.family, page.role, page.harm, page.status, _title(page, language))
            click.echo("\t".join(columns))
    if config.problems or catalogue.problems:
        raise click.exceptions.Exit(2)


def print_tables(pages: Sequence[RulePage], console: Console, language: str = "en") -> None:
    """Print a table of rules for each family, as wide as the terminal. Only titles are wrapped."""
    from rich.table import Table
    from rich.text import Text

    width = max((len(page.id) for page in pages), default=0)
    for family, members in groupby(pages, key=lambda page: page.family):
        rules = list(members)
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, min_width=min(width, max(20, console.width // 2)), overflow="fold")
        table.add_column(overflow="fold", ratio=1)
        for page in rules:
            about = f"{page.role}, {page.harm}" + ("" if page.status == "stable" else f", {page.status}")
            cell = Text.assemble(_title(page, language), "\n", (about, f"dim {_STYLES[page.harm]}"))
            table.add_row(Text(page.id, style="bold"), cell)
        console.print(Text(f"{family} ({len(rules)})", style="bold underline"))
        console.print(table, highlight=False)
        console.print()


def _title(page: RulePage, language: str) -> str:
    return page.title_zh if language == "zh" else page.title


@rules.command()
@click.argument("rule", required=False, metavar="[ID]")
@click.option(
    "--from", "log", required=True, metavar="LOG", help="File, folder, or archive that contains the failure."
)
@click.option("--family", metavar="F", help="Family and folder of the page (default: the failing package).")
@click.option(
    "--output",
    type=FOLDER,
    default=Path("my-rules"),
    metavar="DIR",
    help="Folder of your own rules (default: my-rules).",
)
@rules_option
@click.pass_obj
def new(app: App, rule: str | None, log: str, family: str | None, output: Path) -> None:
    """Draft a rule page for an unknown failure in a log.

    \b
    stallwatch rules new --from slurm-1234.out
    stallwatch rules new reward-server-silent --from logs/ --family rlhf-and-rollout

    The draft contains the pattern, the samples, and the source of the message. You write the explanation and
    the fixes. An existing page is never overwritten.

    Exit code: 2 if the log cannot be read, the log contains no unknown failure, or the page already exists;
    otherwise 0.
    """
    from stallwatch_logs.parallel_reading import read_run
    from stallwatch_rules import __version__
    from stallwatch_rules.authoring.drafting import DraftError, propose
    from stallwatch_rules.pages.page import KEBAB

    config = app.config()
    catalogue = catalogue_of(config)
    reading, unread = read_run([log], catalogue=catalogue)
    print_notices(unread)
    # The problem is already reported; without a file, there is nothing to draft.
    if unread and not reading.streams:
        raise click.exceptions.Exit(2)
    try:
        proposal = propose(reading, since=__version__, rule=rule or "", family=family or "")
    except DraftError as error:
        # The command line is correct, so the command's usage would not help.
        print_notice(f"{log}: {error}")
        raise click.exceptions.Exit(2) from error
    rule, family = proposal.rule, proposal.family
    for what, name in (("ID", rule), ("--family", family)):
        if not KEBAB.fullmatch(name):
            raise click.UsageError(f"{what} {name!r} is not kebab-case: lowercase words joined by hyphens")
    if rule in catalogue.pages:
        raise click.UsageError(f"a rule {rule!r} already exists; choose another ID")
    path = output / family / f"{rule}.md"
    if problems := proposal.problems(str(path)):  # a bug in Stallwatch, reported before a page is written
        print_notices(problems)
        raise click.UsageError("no valid page can be drafted from this failure; write a page by hand")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as page:
            page.write(proposal.text)
    except FileExistsError as error:
        raise click.UsageError(f"{path} already exists; choose another ID or --output folder") from error
    except OSError as error:
        reason = f"{path}: cannot be written: {error.strerror}"
        raise click.UsageError(f"{reason}; choose another folder with --output") from error
    click.echo(path)
    print_notice(f"drafted {rule} from: {proposal.failure.line}")
    print_notice(f"next: write the page's sections, then run stallwatch rules check {output}")
    print_notice(f"then: run stallwatch diagnose {log} --rules {output}")


@rules.command()
@click.option(
    "--prometheus",
    "folder",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Write recording.yml, alerting.yml, and catalogue.yml into this folder.",
)
@rules_option
@click.pass_obj
def export(app: App, folder: Path) -> None:
    """Write the recording and alerting rules for Prometheus.

    \b
    stallwatch rules export --prometheus /etc/prometheus/stallwatch
    stallwatch rules export --prometheus DIR --rules my-rules

    catalogue.yml contains an alert for each rule page, including the pages in your own folders. Each
    runbook_url starts with [dashboard] url or [docs] url. Existing files with these names are replaced. After
    Stallwatch or your rules change, repeat the command and reload Prometheus.
    """
    from stallwatch_alerts.messages.links import Runbooks
    from stallwatch_alerts.prometheus.rulefiles import rule_files

    config = app.config(any_key)
    runbooks = Runbooks(config["dashboard.url"], config["docs.url"])
    catalogue = catalogue_of(config)
    # The problems are already reported. Write nothing, because some rules would have no alerts.
    if catalogue.problems:
        raise click.exceptions.Exit(2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in rule_files(catalogue, runbooks).items():
            write_text(folder / name, text)
            click.echo(folder / name)
    except OSError as error:
        raise click.UsageError(
            f"{error.filename}: cannot be written: {error.strerror}; choose another folder"
        ) from error
