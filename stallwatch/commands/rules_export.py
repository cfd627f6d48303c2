"""``stallwatch rules export``: the rules for other programs' alerting."""

from __future__ import annotations

from pathlib import Path

import click

from stallwatch.commands.context import App, catalogue_of, rules_option


@click.command()
@click.option(
    "--prometheus",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write recording.yml, alerting.yml and catalogue.yml into this folder.",
)
@rules_option
@click.pass_obj
def export(app: App, folder: Path, rule_dirs: tuple[Path, ...]) -> None:
    """Write the recording and alerting rules for Prometheus.

    \b
    stallwatch rules export --prometheus /etc/prometheus/stallwatch
    stallwatch rules export --prometheus DIR --rules my-rules

    catalogue.yml holds one alert per rule page, those of your own folders included. Files of these names are
    replaced. Write them anew when Stallwatch or your rules change, and reload Prometheus.
    """
    from stallwatch_alerts.prometheus.rulefiles import rule_files

    config = app.sound_config(rules__dirs=rule_dirs)
    catalogue = catalogue_of(config)
    if catalogue.problems:  # told; a rule without its alert would be missed when it matters
        raise click.exceptions.Exit(2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in rule_files(catalogue).items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(folder / name)
    except OSError as error:
        raise click.UsageError(
            f"{error.filename}: cannot be written: {error.strerror}; name another folder"
        ) from error
