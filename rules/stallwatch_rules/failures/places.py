"""Where exceptions are raised: which page an exception belongs to by the code that raised it.

A library's function often raises for one reason, whatever words a version has for it: whoever ends in
torch's ``_env_rendezvous_handler`` lacks an environment variable. Pages name such places (``raised_in``), and
they are asked only for an exception that no page knows by its words. The user's own code is no library's,
whatever its folders are called, and what called it did not raise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from stallwatch_rules.failures.raised import Frame, Raised
from stallwatch_rules.pages.page import RaisedIn, RulePage
from stallwatch_rules.pages.patterns import compile_re2

DEEP = 3  #: so many parts make a folder's name its package's own
MAX_DEPTH = 25  #: innermost calls that are looked at: what lies further out called many other things


def page_of_place(raised: Raised, pages: Iterable[RulePage]) -> tuple[RulePage, Frame | None] | None:
    """The page with the innermost call among its places, and that call; ``None`` where two agree as well.

    A place with a message's pattern counts before one without it, and a call before an exception's name alone
    (then there is no call).
    """
    best: list[tuple[_Order, str, RulePage, Frame | None]] = []
    calls = _inside(list(reversed(raised.frames))[:MAX_DEPTH])
    for page in pages:
        found = [
            (_order(place, depth), page.id, page, call)
            for place in page.raised_in
            if _agrees(place, raised)
            for depth, call in _where(place, calls)
        ]
        if found:
            best.append(max(found, key=lambda one: one[0]))
    best.sort(key=lambda one: (one[0], one[1]), reverse=True)
    if not best or (len(best) > 1 and best[0][0] == best[1][0]):
        return None
    return best[0][2], best[0][3]


_Order = tuple[bool, int, int]


def _order(place: RaisedIn, depth: int) -> _Order:
    return bool(place.message), -depth, bool(place.functions) + bool(place.exceptions)


def _agrees(place: RaisedIn, raised: Raised) -> bool:
    """Whether the exception is such a one; one that was cut off may be, where a call tells and no message."""
    cut_off = not raised.exception and place.file
    if place.exceptions and not cut_off and not any(_is(raised.exception, name) for name in place.exceptions):
        return False
    return not place.message or bool(_compiled(place.message).search(raised.message))


def _is(exception: str, name: str) -> bool:
    return exception == name or exception.endswith(f".{name}")


def _inside(calls: list[Frame]) -> list[Frame]:
    """From the innermost call to the user's own innermost one: a library around that ran the user's code."""
    own = next((depth for depth, call in enumerate(calls) if not call.library), len(calls))
    return calls[: own + 1]


def _where(place: RaisedIn, calls: list[Frame]) -> list[tuple[int, Frame | None]]:
    """The calls at a place, with how far inside they are: 0 is the innermost."""
    if not place.file:
        return [(len(calls), None)]
    looked_at = calls if place.below else calls[:1]
    return [(depth, call) for depth, call in enumerate(looked_at) if _at(place, call)]


def _at(place: RaisedIn, call: Frame) -> bool:
    path = "/" + call.path.replace("\\", "/")
    if place.file.endswith("/"):
        # A short name is one that folders of anybody's own have, too; a long one may be a checkout's.
        inside = (call.library or place.file.count("/") >= DEEP) and f"/{place.file}" in path
    else:
        inside = path.endswith(f"/{place.file}")
    return inside and (not place.functions or call.name.rpartition(".")[2] in place.functions)


def found_in(pattern: str, text: str) -> bool:
    """Whether a page's pattern is found in a text."""
    return bool(_compiled(pattern).search(text))


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    return compile_re2(pattern, encoded=False)
