"""Find the text that an informational line only quotes, such as model output.

An error in such text did not occur in the run: ``INFO sample 5: 'RuntimeError: CUDA out of memory'``.
"""

from __future__ import annotations

from collections.abc import Sequence

from stallwatch_rules.failures.templates import mentions_error, states_info
from stallwatch_rules.text.lazy import lazy

# Quotation marks follow a word, or Chinese text without a space. After other characters, they can enclose a
# value that the log itself writes, such as ``msg="…"``, ``{"message": "…"}``, and ``RuntimeError('…')``.
_QUOTED = lazy(r"""(?:(?<=\w)[:,]? +|(?<=[^\x00-\x7f]))(['"`])(.{1,2000}?)\1(?![A-Za-z0-9])""")
#: Words that, like the words for errors, show that the quotation after them is a failure of the run.
_REPORTED = lazy(r"(?i)\b(?:rais|caught|died|exit|terminat|stop|reason|cause|status|stderr|traceback)")


def quoted_spans(text: str) -> Sequence[tuple[int, int]]:
    """Return the positions of the text that a line of level INFO or DEBUG quotes as data.

    If the line mentions a failure before its first quotation, the quotation might be that failure. In this
    case, no positions are returned.
    """
    found = list(_QUOTED.finditer(text)) if states_info(text) else []
    before = text[: found[0].start()] if found else ""
    if not states_info(before) or mentions_error(before) or _REPORTED.search(before):
        return ()
    return [quoted.span(2) for quoted in found]
