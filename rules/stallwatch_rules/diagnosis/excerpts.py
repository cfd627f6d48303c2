"""Where in a long line a rule's words stand, so that a report shows them, not only its beginning."""

from __future__ import annotations

import functools
from typing import Any

from stallwatch_rules.pages.page import RulePage
from stallwatch_rules.pages.patterns import compile_re2


def place_in(page: RulePage, text: str) -> int:
    """The offset of the rule's first match in the text; 0 where it has none."""
    found = (_compiled(pattern).search(text) for pattern in page.patterns)
    return min((match.start() for match in found if match is not None), default=0)


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    return compile_re2(pattern, encoded=False)
