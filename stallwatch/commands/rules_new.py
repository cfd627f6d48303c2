"""``stallwatch rules new``: the draft of a rule page from a log whose failure no rule knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.commands.context import App, catalogue_of, rules_option, tell, tell_all

if TYPE_CHECKING:
    from stallwatch_logs.inputs import InputProblem
    from stallwatch_rules.pages.catalogue import Catalogue
    from stallwatch_rules.reading import RunReading


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
    from stallwatch_rules.authoring.drafting import DraftError
    from stallwatch_rules.authoring.proposal import propose
    from stallwatch_rules.pages.page import KEBAB

    config = app.config(rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    reading, unread = _read(log, catalogue)
    if unread and not reading.streams:  # which was told: no word of what is in a log that nobody read
        raise click.exceptions.Exit(2)
    try:
        proposal = propose(reading, since=_version(), rule=rule or "", family=family or "")
    except DraftError as error:
        tell(f"{log}: {error}")  # the log's fault and not the command's: its usage would not help
        raise click.exceptions.Exit(2) from error
    rule, family = proposal.rule, proposal.family
    for what, name in (("ID", rule), ("--family", family)):
        if not KEBAB.fullmatch(name):
            raise click.UsageError(f"{what} {name!r} is not kebab-case: lower-case words joined by hyphens")
    if rule in catalogue.pages:
        raise click.UsageError(f"there is a rule {rule!r} already: name another ID")
    path = output / family / f"{rule}.md"
    if problems := proposal.problems(str(path)):  # our mistake, and said before anything is written
        tell_all(problems)
        raise click.UsageError("no sound page can be drafted from this failure: write one by hand")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as page:
            page.write(proposal.text)
    except FileExistsError as error:
        raise click.UsageError(f"{path} exists and is left as it is: name another ID or --output") from error
    except OSError as error:
        raise click.UsageError(f"{path}: cannot be written: {error.strerror}") from error
    click.echo(path)
    tell(f"drafted {rule} from: {proposal.failure.line}")
    tell(f"next: write its sections, then stallwatch rules check {output}")
    tell(f"then: stallwatch diagnose {log} --rules {output}")


def _read(log: str, catalogue: Catalogue) -> tuple[RunReading, list[InputProblem]]:
    from stallwatch_logs.parallel_reading import read_run

    reading, problems = read_run([log], catalogue=catalogue)
    tell_all(problems)
    return reading, problems


def _version() -> str:
    from stallwatch import __version__

    return __version__
