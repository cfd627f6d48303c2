"""The options that ``stallwatch run`` and ``stallwatch tail`` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from stallwatch.config_keys import BY_NAME
from stallwatch.config_values import BadValue, from_text

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _reaction(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else str(from_text(BY_NAME["stall.on_stall"], value, Path()))
    except BadValue as error:
        raise click.BadParameter(str(error)) from None


def watch_options(function: _Function) -> _Function:
    """``--name``, ``--host``, ``--port``, ``--on-stall``, ``--no-metrics``."""
    for option in reversed(
        (
            click.option(
                "--name", metavar="NAME", help="The run's name (default: the script's and the time)."
            ),
            click.option("--host", metavar="ADDRESS", help="Where /metrics listens (default: 127.0.0.1)."),
            click.option("--port", type=click.IntRange(0, 65535), help="Its port (default: 19400; 0: any)."),
            click.option(
                "--on-stall",
                callback=_reaction,
                metavar="ACTION",
                help="report (default), abort, or 'command LINE': what to do at a stall.",
            ),
            click.option("--no-metrics", is_flag=True, help="Serve no /metrics."),
        )
    ):
        function = option(function)
    return function
