"""What a launcher's summary tells: which ranks failed, and which of them first."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_RANK = re.compile(r"^\s*rank\s*: (\d{1,6}) \(local_rank: \d+\)")
_EXIT = re.compile(r"^\s*exitcode\s*: (-?\d{1,4})\b")
_ROOT = "Root Cause (first observed failure)"
MAX_RANKS = 4096


@dataclass
class LauncherSummary:
    """Reads torchrun's list of failures, line by line of one stream."""

    codes: dict[int, int | None] = field(default_factory=dict)  #: failed rank → exit code
    first: int | None = None  #: the rank that torchrun saw fail first
    _rank: int | None = None
    _root: bool = False

    def see(self, text: str) -> None:
        """Take the next line."""
        if _ROOT in text:
            self._root = True
        elif "local_rank" in text:
            found = _RANK.match(text)
            if found and len(self.codes) < MAX_RANKS:
                self._rank = int(found[1])
                self.codes.setdefault(self._rank, None)
                if self._root and self.first is None:
                    self.first = self._rank
        elif self._rank is not None and "exitcode" in text:
            found = _EXIT.match(text)
            if found:
                self.codes[self._rank] = int(found[1])

    @property
    def culprits(self) -> list[int]:
        """The ranks to look at: those that were not merely ended by the launcher's SIGTERM."""
        own = [rank for rank, code in self.codes.items() if code != -15]
        return sorted(own) or ([self.first] if self.first is not None else [])
