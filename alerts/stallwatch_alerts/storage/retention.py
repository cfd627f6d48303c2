"""What is over goes after a while: incidents with all that was said and told of them, and messages."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, and_, delete, func, select

from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.tables import ACKNOWLEDGEMENTS, HISTORY, INCIDENTS, MESSAGES, SILENCES, TOLD

_DAY = 86400.0


def prune(engine: Engine, now: float, keep_days: float) -> int:
    """Forget what was over `keep_days` before `now` (Unix seconds); how many rows that was.

    What is open stays, however old, with who was told of it; so do silences in force. A message that still
    waits then is for a chat that nobody has configured since: who had tried it had given it up after a day.
    """
    before = now - keep_days * _DAY
    with writing(engine) as connection:
        gone = delete(MESSAGES).where(MESSAGES.c.created_at < before, MESSAGES.c.not_before < before)
        count = connection.execute(gone).rowcount
        count += _incidents(connection, before)
        open_ones = select(INCIDENTS.c.id).where(INCIDENTS.c.status == "open")
        theirs = func.substr(TOLD.c.key, 1, func.length(INCIDENTS.c.id) + 1) == INCIDENTS.c.id + "/"
        of_open = open_ones.where(theirs).correlate(TOLD).exists()
        count += connection.execute(delete(TOLD).where(TOLD.c.at < before, ~of_open)).rowcount
        count += connection.execute(delete(SILENCES).where(SILENCES.c.ends_at < before)).rowcount
    return count


def _incidents(connection: Connection, before: float) -> int:
    """Those that are over, their history and acknowledgements, and what is left of earlier ones."""
    over = and_(INCIDENTS.c.status == "resolved", INCIDENTS.c.updated_at < before)
    count = connection.execute(delete(INCIDENTS).where(over)).rowcount
    known = select(INCIDENTS.c.id)
    for table in (HISTORY, ACKNOWLEDGEMENTS):
        left = delete(table).where(table.c.at < before, table.c.incident.not_in(known))
        count += connection.execute(left).rowcount
    return count
