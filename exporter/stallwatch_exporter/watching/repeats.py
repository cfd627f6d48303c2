"""Known messages that repeat while a run is quiet, and did not while it trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stallwatch_rules.pages.catalogue import Catalogue
from stallwatch_rules.records import Match

_OFTEN = 5  # matches since the last step
_MORE = 3  # times as many as ever between two steps


class Repeats:
    """Call `add` with the matches of every batch of lines; notices and harmless rules do not count."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._counts = {
            rule
            for rule, page in catalogue.pages.items()
            if page.harm != "harmless" and page.role != "notice"
        }
        self._since: Counter[str] = Counter()  # by rule, since the last sign of progress
        self._usual: Counter[str] = Counter()  # most between two such signs

    def add(self, matches: Sequence[Match], *, progressed: bool) -> None:
        """Take these in; `progressed`: the batch held a sign of progress as well."""
        self._since.update(match.rule for match in matches if match.rule in self._counts)
        if progressed:
            for rule, count in self._since.items():
                self._usual[rule] = max(self._usual[rule], count)
            self._since.clear()

    def now(self) -> bool:
        """Whether a known message repeats since the last sign of progress, more than it did before."""
        return any(count >= max(_OFTEN, _MORE * self._usual[rule]) for rule, count in self._since.items())
