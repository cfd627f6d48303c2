"""Delete old messages, and old resolved incidents with their history and notification records."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Engine, and_, delete, func, or_, select

from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.tables import (
    ACKNOWLEDGEMENTS,
    CLUSTER_REPORTS,
    CLUSTER_RUNS,
    HISTORY,
    INCIDENTS,
    MESSAGES,
    NOTIFIED,
    SILENCES,
)

_DAY = 86400.0
# A chat that was notified of an incident's beginning must also be notified of its end. Neither a spool nor
# a relay of alerts without incidents can find out whether the end follows. Therefore, they keep the
# record of the beginning this many times as long as other records.
_OPEN_FOR = 4
_BEGINNINGS = ("/open", "/open/escalated")  # see ``notice``
_ENDS = ("/resolved", "/ended")


def prune(engine: Engine, now: float, keep_days: float) -> int:
    """Delete the data of incidents that ended more than `keep_days` days before the Unix time `now`.

    Return the number of deleted rows. Open incidents with their records of notifications, and current
    silences, are kept regardless of age. If a chat was notified only of an incident's beginning, the record
    is kept four times as long, because the incident might be in a different database. A message that still
    waits after `keep_days` is for a chat that is no longer configured, because other messages are discarded
    after a day.
    """
    before = now - keep_days * _DAY
    with writing(engine) as connection:
        gone = delete(MESSAGES).where(MESSAGES.c.created_at < before, MESSAGES.c.not_before < before)
        count = connection.execute(gone).rowcount
        count += _incidents(connection, before)
        open_ones = select(INCIDENTS.c.id).where(INCIDENTS.c.status == "open")
        theirs = func.substr(NOTIFIED.c.key, 1, func.length(INCIDENTS.c.id) + 1) == INCIDENTS.c.id + "/"
        of_open = open_ones.where(theirs).correlate(NOTIFIED).exists()
        without_end = and_(NOTIFIED.c.at >= now - _OPEN_FOR * keep_days * _DAY, _lacks_end())
        count += connection.execute(
            delete(NOTIFIED).where(NOTIFIED.c.at < before, ~of_open, ~without_end)
        ).rowcount
        count += connection.execute(delete(SILENCES).where(SILENCES.c.ends_at < before)).rowcount
        for at in (CLUSTER_REPORTS.c.updated_at, CLUSTER_RUNS.c.merged_at):
            count += connection.execute(delete(at.table).where(at < before)).rowcount
    return count


def _lacks_end() -> ColumnElement[bool]:
    """Return the SQL condition for rows of NOTIFIED that record a beginning whose end is not recorded."""
    end = NOTIFIED.alias("end")
    found = []
    for beginning in _BEGINNINGS:
        about = func.substr(NOTIFIED.c.key, 1, func.length(NOTIFIED.c.key) - len(beginning))
        ends = [about + name for name in _ENDS]
        ended = and_(end.c.channel == NOTIFIED.c.channel, end.c.key.in_(ends))
        found.append(
            and_(
                NOTIFIED.c.key.endswith(beginning),
                ~select(end.c.key).where(ended).correlate(NOTIFIED).exists(),
            )
        )
    return or_(*found)


def _incidents(connection: Connection, before: float) -> int:
    """Delete old resolved incidents, and old history and acknowledgements that belong to no incident."""
    over = and_(INCIDENTS.c.status == "resolved", INCIDENTS.c.updated_at < before)
    count = connection.execute(delete(INCIDENTS).where(over)).rowcount
    known = select(INCIDENTS.c.id)
    for table in (HISTORY, ACKNOWLEDGEMENTS):
        left = delete(table).where(table.c.at < before, table.c.incident.not_in(known))
        count += connection.execute(left).rowcount
    return count
