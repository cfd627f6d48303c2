"""The options that ``stallwatch run`` and ``stallwatch tail`` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])


def watch_options(function: _Function) -> _Function:
    """``--name``, ``--host``, ``--port``, ``--no-metrics``."""
    for option in reversed(
        (
            click.option(
                "--name", metavar="NAME", help="The run's name (default: the script's and the time)."
            ),
            click.option("--host", metavar="ADDRESS", help="Where /metrics listens (default: 127.0.0.1)."),
            click.option("--port", type=click.IntRange(0, 65535), help="Its port (default: 19400; 0: any)."),
            click.option("--no-metrics", is_flag=True, help="Serve no /metrics."),
        )
    ):
        function = option(function)
    return function
