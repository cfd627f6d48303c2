"""What goes wrong in the agent does not get out: it is counted and told once, and the command goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from stallwatch_rules.text.redact import redact


class Guard:
    """``with guard("reading the log"):`` runs a part of the agent's work and survives its errors."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.errors = 0
        self._notice = notice
        self._told: set[str] = set()

    @contextlib.contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run the block; ``what`` names it to the user, once."""
        try:
            yield
        except Exception as error:
            self.errors += 1
            if what not in self._told:
                self._told.add(what)
                cause = f"{type(error).__name__}: {redact(str(error))}"
                self._notice(f"{what} failed ({cause}); the run goes on")
