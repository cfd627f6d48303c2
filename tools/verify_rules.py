"""Check that packages still print the rules' text: ``python tools/verify_rules.py --package deepspeed``.

A rule is found if the fixed text of one of its patterns is found in the strings in the package's Python, C++,
or compiled files. Rules for other versions are skipped. ``docs/rules.md`` describes the exact conditions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import click
from wordings.files import SourceError, SourceFile, Sources, in_folders
from wordings.packages import downloaded, installed
from wordings.search import Search, Verified
from wordings.strings import held, strings_in

from stallwatch_rules.pages.catalogue import load_catalogue
from stallwatch_rules.pages.page import RulePage


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--package", required=True, metavar="NAME", help="The package, such as deepspeed.")
@click.option("--version", metavar="X", help="The release to download, or the version in the folder.")
@click.option(
    "--path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Search this folder of source instead of the installed package.",
)
@click.option("--download", is_flag=True, help="Search the newest release (or --version) without running it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--rules",
    "rule_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of your own rule pages. You can repeat this option.",
)
def verify(
    package: str,
    version: str | None,
    path: Path | None,
    download: bool,
    as_json: bool,
    rule_dirs: tuple[Path, ...],
) -> None:
    """Check that a package's source still contains the text of the rules that name the package in emitted_by.

    \b
    python tools/verify_rules.py --package deepspeed
    python tools/verify_rules.py --package trl --download
    python tools/verify_rules.py --package torch --path ~/src/pytorch

    The exit code is 1 if the text of a rule is missing, 2 if there is no source to search, and 0 otherwise.
    """
    if path and download:
        raise click.UsageError("--path and --download exclude each other")
    if version and not (path or download):
        raise click.UsageError("--version needs --download, or the --path of that version")
    catalogue = load_catalogue(rule_dirs)
    for problem in catalogue.problems:
        click.echo(problem, err=True)
    source: AbstractContextManager[Sources]
    try:
        if download:
            source = downloaded(package, version or "")
        else:
            source = nullcontext(Sources(in_folders([path]), version or "") if path else installed(package))
        with source as sources:
            results = look(list(catalogue.pages.values()), package, sources)
            found_version = sources.version
    except SourceError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        record = {
            "package": package,
            "version": found_version,
            "rules": [asdict(result) for result in results],
        }
        click.echo(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        _print(results, package, found_version)
    sys.exit(1 if any(result.state == "missing" for result in results) else 0)


def look(pages: Sequence[RulePage], package: str, sources: Sources) -> list[Verified]:
    """Search the package's source and return the result for each rule that names the package."""
    search = Search(pages, package, sources.version)
    named: list[SourceFile] = []
    source: list[SourceFile] = []
    binary: list[SourceFile] = []
    files = sorted(sources.files, key=lambda file: file.name)
    for file in files:
        first = search.named(file.place or file.name)
        (named if first else binary if file.binary else source).append(file)
    with _progress(len(files)) as advance:

        def see(some: Iterable[SourceFile]) -> None:
            for file in some:
                if search.done:
                    break
                search.see(file.name, strings_in(file, search.phrases, search.may_be_in))
                advance()

        see(named)
        see(_promising(source, search, advance))
        see(binary)  # binary files come last, because they are large and have no lines
    absent = search.compiled - {file.base for file in files}
    for file in files:
        if absent and file.binary:
            absent -= held(file, absent)
    for compiled in absent:
        search.absent(compiled)
    search.settle()
    return list(search.results.values())


def _promising(
    files: Iterable[SourceFile], search: Search, advance: Callable[[], None]
) -> Iterator[SourceFile]:
    """Yield the files that can contain the text of a rule. The most likely files come first.

    If all rules are found in these files, the other files need no parsing.
    """
    by_promise: dict[int, list[SourceFile]] = {2: [], 1: []}
    for file in files:
        if search.done:
            return
        if promise := search.promise(file.text()):
            by_promise[promise].append(file)
        else:
            advance()
    yield from (file for some in by_promise.values() for file in some)


def _print(results: Sequence[Verified], package: str, version: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"found": "green", "missing": "bold red", "skipped": "dim"}
    table = Table("rule", "", "where", box=None, pad_edge=False)
    for result in sorted(
        results, key=lambda item: (item.state != "missing", item.state == "skipped", item.rule)
    ):
        place = f"{result.file}:{result.line}" if result.line else result.file
        where = {"found": place, "missing": result.pattern, "skipped": result.reason}[result.state]
        table.add_row(result.rule, Text(result.state, style=styles[result.state]), Text(where))
    Console(width=None if sys.stdout.isatty() else 1000).print(table, highlight=False)
    counts = [f"{sum(result.state == state for result in results)} {state}" for state in styles]
    click.echo(f"{package} {version or '(version unknown)'}: {', '.join(counts)}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal and yield the function that advances the bar."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda: bar.advance(task)


if __name__ == "__main__":
    verify()
