"""Implement ``stallwatch stacks``: show the current stacks of the ranks on this host."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stallwatch.cli.context import App, language_option, say

if TYPE_CHECKING:
    from stallwatch_exporter.stacks.targets import Seen
    from stallwatch_rules.stacks.records import StallStacks


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN | PID | FOLDER | FILE…]")
@click.option("--all", "everything", is_flag=True, help="Show every thread of every rank.")
@click.option("--json", "as_json", is_flag=True, help="Print the stacks as JSON.")
@language_option
@click.pass_obj
def stacks(app: App, targets: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Show the current stacks of the ranks on this host.

    Ranks that have the same stack form one group; ranks that block other ranks come first. RUN is a run that
    is being watched on this host, FOLDER is the folder of the run, and PID is any process that has ranks
    among its descendants, such as torchrun. If you specify no argument, the command shows the only run that
    is being watched on this host. FILEs are outputs of --json from several hosts, or dumps from the torch
    flight recorder; the command evaluates all their ranks together.

    \b
    stallwatch stacks
    stallwatch stacks 4711 --all
    stallwatch stacks sft-7b --json > n1.json
    stallwatch stacks n1.json n2.json
    stallwatch stacks ~/.cache/torch/comm_lib_trace_rank_*

    The command does not stop any process or disturb a running agent. To read ranks that have no probe, the
    command uses py-spy.

    Exit code: 0 if nothing seems to block the run, 1 if a rank or another cause blocks the run, and 2 if no
    rank could be read.
    """
    from stallwatch_exporter.stacks.targets import NoTargetError, find_target, look, read_snapshots

    config = app.config()
    language = config["ui.language"]
    try:
        if all(Path(name).is_file() for name in targets) and targets:
            name, seen = ", ".join(targets), read_snapshots([Path(name) for name in targets])
        elif len(targets) > 1:
            raise NoTargetError("stacks-one", names=" ".join(targets))
        else:
            target = find_target("".join(targets), config["run.home"])
            name, seen = target.name, look(target)
    except NoTargetError as error:
        raise click.UsageError(say(error.key, language, **error.parameters)) from error
    if as_json:
        click.echo(_json(seen.stacks))
    else:
        from stallwatch_rules.text.redact import redact

        click.echo(redact(_text(seen, name, language, everything=everything)), nl=False)
    named = seen.stacks.odd or seen.stacks.candidates or seen.stacks.why
    raise click.exceptions.Exit(1 if named else 0)


def _text(seen: Seen, name: str, language: str, *, everything: bool) -> str:
    from stallwatch_rules.locale import render
    from stallwatch_rules.report.stacks import folded, listing
    from stallwatch_rules.stacks.sentences import sentence
    from stallwatch_rules.text.digest import fold_ranks

    found = seen.stacks
    if everything and seen.answers:
        return listing(found, seen.answers, name)
    ranks = [rank for group in found.groups for rank in group.ranks]
    about = {"ranks": fold_ranks(ranks), "seconds": f"{found.seconds:.1f}", "name": name}
    parts = [say("stacks-head", language, count=len(ranks), **about), render(sentence(found), language)]
    if seen.advances:
        parts.append(say("stacks-moving", language))
    if found.why:
        odd = fold_ranks(found.odd)
        parts.append(say(f"stacks-why-{found.why}", language, ranks=odd, count=len(found.odd)))
    elif found.candidates:
        parts.append(say("stacks-candidates", language, ranks=fold_ranks(found.candidates)))
    return "\n".join(parts) + "\n\n" + folded(found, language) + "\n"


def _json(found: StallStacks) -> str:
    """Return the stacks as JSON. The name of this host distinguishes snapshots from different hosts."""
    import msgspec

    from stallwatch_exporter.rings.probing import without_secrets
    from stallwatch_rules.stacks.spans import spans_of

    if not found.hosts:
        ranks = [rank for group in found.groups for rank in group.ranks]
        found = msgspec.structs.replace(found, hosts={socket.gethostname(): spans_of(ranks)})
    shown = without_secrets(msgspec.to_builtins(found, str_keys=True))
    return msgspec.json.format(msgspec.json.encode(shown), indent=2).decode()
