"""Who was told of what. Agents and relays on one database share it, so no chat hears a thing twice."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, Engine, insert, select
from sqlalchemy.exc import IntegrityError

from stallwatch_alerts.storage.engine import writing
from stallwatch_alerts.storage.migrate import migrate
from stallwatch_alerts.storage.tables import TOLD

_IN_ONE_QUERY = 500  # SQLite takes 32,766 parameters, older ones 999


class Ledger:
    """What each chat was told, by key; a chat goes by its ``fingerprint``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        migrate(engine)

    def note(self, channel: str, key: str, at: float) -> None:
        """The chat was told; a second time changes nothing."""
        try:
            with writing(self._engine) as connection:
                connection.execute(insert(TOLD).values(channel=channel, key=key, at=at))
        except IntegrityError:
            pass

    def told(self, channel: str, keys: Iterable[str]) -> set[str]:
        """Those of the `keys` that the chat was told."""
        with self._engine.connect() as connection:
            return told(connection, channel, keys)

    def has_all(self, channel: str, keys: Iterable[str]) -> bool:
        """Whether the chat was told all of it."""
        wanted = set(keys)
        return self.told(channel, wanted) == wanted


def told(connection: Connection, channel: str, keys: Iterable[str]) -> set[str]:
    """As ``Ledger.told``, within a transaction."""
    wanted, found = list(dict.fromkeys(keys)), set()
    for begin in range(0, len(wanted), _IN_ONE_QUERY):
        some = wanted[begin : begin + _IN_ONE_QUERY]
        found |= set(
            connection.scalars(select(TOLD.c.key).where(TOLD.c.channel == channel, TOLD.c.key.in_(some)))
        )
    return found
