"""``stallwatch rules new``: the draft of a rule page from a log whose failure no rule knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, rules_option, tell, tell_all

if TYPE_CHECKING:
    from stallwatch_exporter.inputs import InputProblem
    from stallwatch_rules.catalogue import Catalogue
    from stallwatch_rules.reading import RunReading

OWN_FAMILY = "own"  #: where the log does not tell which package the failure comes from


@click.command()
@click.argument("rule", required=False, metavar="[ID]")
@click.option("--from", "log", required=True, metavar="LOG", help="File, folder or archive with the failure.")
@click.option("--family", metavar="F", help="The page's family and folder; by default the failing package.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("my-rules"),
    metavar="DIR",
    help="The folder of your own rules (my-rules).",
)
@rules_option
@click.pass_obj
def new(
    app: App, rule: str | None, log: str, family: str | None, output: Path, rule_dirs: tuple[Path, ...]
) -> None:
    """Draft a rule page from a log's unknown failure.

    \b
    stallwatch rules new --from slurm-1234.out
    stallwatch rules new reward-server-silent --from logs/ --family rlhf-and-rollout

    The pattern, the samples and where the message comes from are filled in; what happened, why and the fixes
    are yours to write. An existing page is never overwritten.

    Exit code: 2 when the log cannot be read or holds no unknown failure, or the page exists; else 0.
    """
    from stallwatch_rules.drafting import (
        DraftError,
        draft,
        failure_of,
        id_of,
        origin_of,
        pattern_of,
        quiet_line,
    )
    from stallwatch_rules.page import KEBAB

    config = app.config(rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    reading, unread = _read(log, catalogue)
    if unread and not reading.streams:  # which was told: no word of what is in a log that nobody read
        raise click.exceptions.Exit(2)
    diagnosis = reading.diagnose()
    try:
        failure = failure_of(diagnosis)
    except DraftError as error:
        raise click.UsageError(f"{log}: {error}") from error
    package, _ = origin_of(failure)
    rule, family = rule or id_of(failure, package), family or package or OWN_FAMILY
    for what, name in (("ID", rule), ("--family", family)):
        if not KEBAB.fullmatch(name):
            raise click.UsageError(f"{what} {name!r} is not kebab-case: lower-case words joined by hyphens")
    if rule in catalogue.pages:
        raise click.UsageError(f"there is a rule {rule!r} already: name another ID")
    path = output / family / f"{rule}.md"
    pattern = pattern_of(failure)
    text = draft(
        failure,
        pattern,
        rule=rule,
        family=family,
        since=_version(),
        quiet=quiet_line(failure, pattern, _healthy(reading)),
        versions=diagnosis.environment,
    )
    _check(text, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as page:
            page.write(text)
    except FileExistsError as error:
        raise click.UsageError(f"{path} exists and is left as it is: name another ID or --output") from error
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(path)
    tell(f"drafted {rule} from: {failure.line}")
    tell(f"next: write its sections, then stallwatch rules check {output}")
    tell(f"then: stallwatch diagnose {log} --rules {output}")


def _read(log: str, catalogue: Catalogue) -> tuple[RunReading, list[InputProblem]]:
    from stallwatch_exporter.baseline import read_run

    reading, problems = read_run([log], catalogue=catalogue)
    tell_all(problems)
    return reading, problems


def _healthy(reading: RunReading) -> list[str]:
    """Messages that are no errors, redacted."""
    from stallwatch_rules.reported import shown

    return [
        shown(entry.first.text)
        for stream in reading.streams.values()
        for entry in stream.templates.entries.values()
        if entry.level != "error"
    ]


def _check(text: str, path: Path) -> None:
    """A draft that would not load is our mistake, and is said before anything is written."""
    from stallwatch_rules.checking import check_page
    from stallwatch_rules.page import PageError, parse_page

    try:
        problems = check_page(parse_page(text, str(path), chinese=False))
    except PageError as error:
        problems = error.every()
    if problems:
        tell_all(problems)
        raise click.UsageError("no sound page can be drafted from this failure: write one by hand")


def _version() -> str:
    from stallwatch import __version__

    return __version__
