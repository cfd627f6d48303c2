"""Implement ``stallwatch check``: check a run before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import PATH, App, language_option, print_notices, rendered

if TYPE_CHECKING:
    from stallwatch.cli.check_inputs import Inputs
    from stallwatch_lint.diagnostic import Diagnostic
    from stallwatch_lint.report import Covered


_WILL_FAIL, _UNREADABLE = 1, 2


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE…]", type=PATH)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=PATH,
    metavar="PATH",
    help="A checkpoint folder or file to check for completeness; can be repeated.",
)
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="Number of data-parallel ranks.")
@click.option(
    "--python", metavar="PATH", help="Python interpreter of the run (default: the interpreter of Stallwatch)."
)
@click.option(
    "--versions",
    "versions_file",
    type=PATH,
    metavar="FILE",
    help="Read the versions from a file (requirements.txt or output of pip freeze), not from Python.",
)
@click.option("--strict", is_flag=True, help="Also exit with 1 if a failure is only likely.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@language_option
@click.pass_obj
def check(
    app: App,
    files: tuple[Path, ...],
    checkpoints: tuple[Path, ...],
    world_size: int | None,
    python: str | None,
    versions_file: Path | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Check a configuration and a script before the run.

    FILE is a configuration of DeepSpeed (.json) or accelerate (.yaml), or a training script (.py), which is
    parsed and never run.

    \b
    stallwatch check ds_config.json train.py --world-size 8
    stallwatch check accelerate.yaml --python ~/venvs/train/bin/python
    stallwatch check --checkpoint output/checkpoint-500

    Exit code: 1 if a failure is certain (with --strict, also if a failure is likely); 2 if an input could
    not be read (all other inputs are still checked); otherwise 0.
    """
    from stallwatch.cli.check_inputs import KINDS, read_inputs, sources_of
    from stallwatch_lint.check_run import check_run
    from stallwatch_lint.diagnostic import ordered
    from stallwatch_lint.report import print_check, to_json
    from stallwatch_lint.signatures import Signatures

    if not (files or checkpoints or python or versions_file):
        raise click.UsageError(
            "specify a configuration, a script, or --checkpoint PATH; to see examples, use -h"
        )
    for file in files:
        if file.suffix not in KINDS and not file.is_dir():
            raise click.UsageError(f"{file}: the name must end in {', '.join(KINDS)}")
    config = app.config()
    inputs = read_inputs(files)
    diagnostics: list[Diagnostic] = list(inputs.diagnostics)
    if files or python or versions_file:
        versions = inputs.read_versions(python, versions_file)
        source = str(versions_file) if versions_file else None
        signatures = Signatures(sources_of(python)) if inputs.scripts and versions_file is None else None
        for config_file in tuple(inputs.configs) or (None,):
            diagnostics += check_run(
                config_file,
                inputs.scripts,
                versions,
                world_size=world_size,
                versions_source=source,
                signatures=signatures,
            )
    for path in checkpoints:
        diagnostics += _of_checkpoint(path, inputs)
    print_notices(inputs.problems)
    found, language = ordered(diagnostics), config["ui.language"]
    if as_json:
        report = to_json(found, inputs.looked_at, inputs.problems, language)
    else:
        covered: Covered = "part" if inputs.problems else "all" if files or checkpoints else "versions"
        report = rendered(
            lambda console: print_check(found, inputs.looked_at, console, language, covered=covered),
            coloured=sys.stdout.isatty(),
        )
    click.echo(report, nl=False)
    if inputs.problems or config.problems:
        raise click.exceptions.Exit(_UNREADABLE)
    stops = ("fails", "likely") if strict else ("fails",)
    raise click.exceptions.Exit(_WILL_FAIL if any(finding.severity in stops for finding in found) else 0)


def _of_checkpoint(path: Path, inputs: Inputs) -> list[Diagnostic]:
    from stallwatch_exporter.checkpoints.checking import MOST_NAMES, check_checkpoint, diagnostic_of, listed
    from stallwatch_exporter.checkpoints.checking import checked_files as find_files
    from stallwatch_exporter.checkpoints.formats import examples
    from stallwatch_rules.text.digest import counted

    try:
        below = listed(path, on_count=lambda names: print_notices([f"{path}: {names:,} entries so far"]))
    except FileNotFoundError:
        inputs.problems.append(f"{path}: no such file or folder")
        return []
    if not below.whole:
        inputs.problems.append(
            f"{path} contains more than {MOST_NAMES:,} files and folders, and not all of them were checked;"
            " specify the path of the checkpoint's folder"
        )
    faults = check_checkpoint(path, below)
    count, foreign = find_files(path, below)
    others = f"{examples(foreign)}: neither a zip archive nor a pickle" if foreign else ""
    if not count and below.whole:
        wanted = f"{path}: no checkpoint file found (.safetensors, .bin, .pt, latest)"
        inputs.problems.append(f"{wanted}; {others}" if others else wanted)
    left_out = f", without {others}" if others else ""
    inputs.looked_at.append(f"{path} ({counted(count, 'file')}{left_out})")
    return [diagnostic_of(fault) for fault in faults]
