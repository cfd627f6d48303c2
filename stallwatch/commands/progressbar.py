"""The bar that tells how much of the logs has been read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_WORTH_A_BAR = 32 * 1024 * 1024


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """Tells how much has been read, on a terminal and only where it takes long enough to be read."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("reading", total=None, start=True)
    shown = False

    def update(done: int, total: int) -> None:
        nonlocal shown
        if not shown and max(done, total) >= _WORTH_A_BAR:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=done, total=total or None)

    try:
        yield update
    finally:
        if shown:
            bar.stop()
