"""``stallwatch check``: what can be said of a run before it starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import PATH, App, language_option, rendered, tell_all

if TYPE_CHECKING:
    from stallwatch_lint.diagnostic import Diagnostic
    from stallwatch_lint.dsconfig import DsConfig
    from stallwatch_lint.report import Covered
    from stallwatch_lint.signatures import Signatures


_WILL_FAIL, _UNREADABLE = 1, 2


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE…]", type=PATH)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=PATH,
    metavar="PATH",
    help="A checkpoint's folder or file, to see whether it is whole; may be repeated.",
)
@click.option("--world-size", type=click.IntRange(min=1), metavar="N", help="Data-parallel ranks of the run.")
@click.option(
    "--python", metavar="PATH", help="The Python that will train (default: the one Stallwatch runs in)."
)
@click.option(
    "--versions",
    "versions_file",
    type=PATH,
    metavar="FILE",
    help="Take versions from this requirements.txt or pip freeze instead.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for what is likely to fail, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings for programs.")
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
    """Say what will go wrong, before the run.

    FILE is a DeepSpeed configuration (.json), accelerate's (.yaml), or a training script (.py), which is
    parsed and never run.

    \b
    stallwatch check ds_config.json train.py --world-size 8
    stallwatch check accelerate.yaml --python ~/venvs/train/bin/python
    stallwatch check --checkpoint output/checkpoint-500

    Exit code: 1 when something will fail (with --strict also when it is likely to); 2 when something could
    not be read (the rest is still checked); else 0.
    """
    from stallwatch.cli.check_inputs import KINDS, read_inputs
    from stallwatch_lint.check_run import check_run
    from stallwatch_lint.diagnostic import ordered

    if not (files or checkpoints or python or versions_file):
        raise click.UsageError("name a configuration, a script or --checkpoint PATH; -h shows examples")
    for file in files:
        if file.suffix not in KINDS and not file.is_dir():
            raise click.UsageError(f"{file}: the name must end in {', '.join(KINDS)}")
    config = app.config()
    inputs = read_inputs(files)
    diagnostics: list[Diagnostic] = list(inputs.diagnostics)
    if files or python or versions_file:
        versions = _versions(python, versions_file, inputs.problems, inputs.looked_at)
        source = str(versions_file) if versions_file else None
        configs: list[DsConfig | None] = [*inputs.configs]
        signatures = _signatures(python) if inputs.scripts and versions_file is None else None
        for one in configs or [None]:
            diagnostics += check_run(
                one,
                inputs.scripts,
                versions,
                world_size=world_size,
                versions_source=source,
                signatures=signatures,
            )
    for path in checkpoints:
        diagnostics += _of_checkpoint(path, inputs.problems, inputs.looked_at)
    tell_all(inputs.problems)
    covered: Covered = "part" if inputs.problems else "all" if files or checkpoints else "versions"
    _show(ordered(diagnostics), inputs.looked_at, inputs.problems, as_json, config["ui.language"], covered)
    if inputs.problems or config.problems:
        raise click.exceptions.Exit(_UNREADABLE)
    stops = ("fails", "likely") if strict else ("fails",)
    raise click.exceptions.Exit(_WILL_FAIL if any(one.severity in stops for one in diagnostics) else 0)


def _versions(
    python: str | None, file: Path | None, problems: list[str], looked_at: list[str]
) -> dict[str, str]:
    from stallwatch.cli.check_inputs import (
        EnvironmentUnknown,
        versions_here,
        versions_in_file,
        versions_of_python,
    )

    try:
        if file is not None:
            versions, where = versions_in_file(file), str(file)
        elif python is not None:
            versions, where = versions_of_python(python), python
        else:
            versions, where = versions_here(), "this Python"
    except EnvironmentUnknown as error:
        problems.append(str(error))
        return {}
    stack = [name for name in ("deepspeed", "torch", "transformers", "trl") if name in versions]
    if stack:
        looked_at.append(f"{', '.join(f'{name} {versions[name]}' for name in stack)} ({where})")
    return versions


def _signatures(python: str | None) -> Signatures:
    from stallwatch.cli.check_inputs import sources_of
    from stallwatch_lint.signatures import Signatures

    return Signatures(sources_of(python))


def _of_checkpoint(path: Path, problems: list[str], looked_at: list[str]) -> list[Diagnostic]:
    from stallwatch_exporter.checkpoints.checking import MOST_NAMES, check_checkpoint, diagnostic_of, listed
    from stallwatch_exporter.checkpoints.checking import looked_at as find_files
    from stallwatch_exporter.checkpoints.formats import examples
    from stallwatch_rules.text.digest import counted

    try:
        below = listed(path, tell=lambda names: tell_all([f"{path}: {names:,} names so far"]))
    except FileNotFoundError:
        problems.append(f"{path}: no such file or folder")
        return []
    if not below.whole:
        problems.append(
            f"{path}: more than {MOST_NAMES:,} files and folders lie below it, the rest was not looked at;"
            " name the checkpoint's own folder"
        )
    faults = check_checkpoint(path, below)
    count, foreign = find_files(path, below)
    others = f"{examples(foreign)}: neither zip archive nor pickle" if foreign else ""
    if not count and below.whole:
        wanted = f"{path}: holds no file of a checkpoint (.safetensors, .bin, .pt, latest)"
        problems.append(f"{wanted}; {others}" if others else wanted)
    left_out = f", without {others}" if others else ""
    looked_at.append(f"{path} ({counted(count, 'file')}{left_out})")
    return [diagnostic_of(fault) for fault in faults]


def _show(
    diagnostics: list[Diagnostic],
    looked_at: list[str],
    problems: list[str],
    as_json: bool,
    language: str,
    covered: Covered,
) -> None:
    from stallwatch_lint.report import print_check, to_json

    if as_json:
        click.echo(to_json(diagnostics, looked_at, problems, language), nl=False)
        return
    coloured = sys.stdout.isatty()
    click.echo(
        rendered(
            lambda console: print_check(diagnostics, looked_at, console, language, covered=covered),
            coloured=coloured,
        ),
        nl=False,
    )
