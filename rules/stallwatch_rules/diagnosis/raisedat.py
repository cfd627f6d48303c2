"""Where the exception that the primary cause was read from was raised: its calls, and the user's own line."""

from __future__ import annotations

import msgspec

from stallwatch_rules.diagnosis.findings import MAX_EVIDENCE, Found, Streams
from stallwatch_rules.failures.raised import Raised, own_frame, shown_frames
from stallwatch_rules.failures.tracebacks import MORE_LINES
from stallwatch_rules.records import Line, Primary
from stallwatch_rules.text.reported import shown


def with_calls(primary: Primary, one: Found, streams: Streams) -> Primary:
    """The primary with the calls of its exception, the user's own innermost one under the matched line.

    Only where the line that it points to is that exception's own: another one of the same rule may have come
    elsewhere. A crash of compiled code has its calls told by its own page.
    """
    match = one.shown_match
    if match is None:
        return primary
    told = [
        raised
        for key in one.hits
        for seen in streams[key].exceptions_now().seen.values()
        for raised in (seen.raised, seen.last)
        if raised.kind == "failure" and not raised.native and raised.frames
        if primary.rule in raised.rules and _says(raised, match.line)
    ]
    if not told:
        return primary
    nearest = max(told, key=lambda raised: raised.line.number)
    frames = [shown(frame) for frame in shown_frames(nearest.frames)]
    own = own_frame(frames)
    evidence = [*primary.evidence[:1], f"  {own}", *primary.evidence[1:]][:MAX_EVIDENCE]
    return msgspec.structs.replace(primary, frames=frames, evidence=evidence if own else primary.evidence)


def _says(raised: Raised, line: Line) -> bool:
    """Whether a line is the exception's final one, or of the message right under it."""
    if (raised.line.source, raised.line.rank) != (line.source, line.rank):
        return False
    return 0 <= line.number - raised.line.number <= MORE_LINES
