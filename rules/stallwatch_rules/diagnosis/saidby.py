"""Words that exceptions of others say as well: the calls of the traceback tell whose they are.

``KeyError: 'optimizer'`` is a checkpoint's where something loads one, and a configuration's elsewhere. A page
says so (``said_by``), and it is asked only where the exception's calls are shown: a line alone counts. Where
a script does all in ``main``, the innermost call's line of code says it (``load_state_dict(…)``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stallwatch_rules.diagnosis.exceptions import tells
from stallwatch_rules.failures.raised import found_in
from stallwatch_rules.text.lazy import lazy

if TYPE_CHECKING:
    from stallwatch_rules.diagnosis.findings import Found, Streams
    from stallwatch_rules.failures.raised import Raised
    from stallwatch_rules.pages.page import RulePage

_STRINGS = lazy(r"'[^']*'|\"[^\"]*\"")  #: in code, which hold the words themselves: row["RANK"]


def leave_out_others(found: list[Found], streams: Streams) -> None:
    """Leave out what fired on exceptions that are none of the page's, by the code that raised them."""
    for one in [one for one in found if one.page.said_by and one.hits]:
        for key in list(one.hits):
            table = streams[key].exceptions_now().seen.values()
            seen = [each.last for each in table if one.rule in each.last.rules]
            own = [raised for raised in seen if not _of_others(one.page, raised)]
            if seen and not own and any(tells(one.hits[key], raised) for raised in seen):
                del one.hits[key]
        one.occurrences = tuple(place for place in one.occurrences if place.stream in one.hits)
        if not one.hits:
            found.remove(one)


def _of_others(page: RulePage, raised: Raised) -> bool:
    """Whether the exception's words are those of several, and its calls are none of the page's."""
    said = f"{raised.exception}: {raised.message}"
    for one in page.said_by:
        if not raised.frames or not found_in(one.words, said):
            continue
        calls = [f"{call.path} in {call.name}".replace("\\", "/") for call in raised.frames]
        told = [*calls, _STRINGS.sub("", raised.source)]
        if one.calls and not any(found_in(one.calls, part) for part in told):
            return True
        if one.never and any(found_in(one.never, call) for call in calls):
            return True
    return False
