"""What is wrong with a rule page: file, line, message, remedy."""

from __future__ import annotations

from collections.abc import Sequence


class PageError(ValueError):
    """A problem of a rule page. ``every()`` gives this one and those found with it, in line order."""

    def __init__(self, path: str, line: int, message: str, remedy: str) -> None:
        super().__init__(f"{path}:{line}: {message}; {remedy}")
        self.path = path
        self.line = line
        self.message = message
        self.remedy = remedy
        self.others: list[PageError] = []

    @classmethod
    def of(cls, problems: Sequence[PageError]) -> PageError:
        """Fold several problems into the first of them, to raise all at once."""
        first = problems[0]
        first.others = list(problems[1:])
        return first

    def every(self) -> list[PageError]:
        """This problem and the others found in the same reading."""
        return [self, *self.others]
