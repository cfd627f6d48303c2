"""Store user input about incidents: acknowledgements, silences, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from sqlalchemy import Engine, and_, delete, insert, or_, select, update

from stallwatch_alerts.delivery.outbox import withdraw_escalations
from stallwatch_alerts.storage.engine import migrate, writing
from stallwatch_alerts.storage.tables import ACKNOWLEDGEMENTS, HISTORY, INCIDENTS, MESSAGES, SILENCES
from stallwatch_exporter.incident import Incident

_KEPT_SECONDS = 30 * 86400.0


@dataclass(frozen=True)
class Silence:
    """A period during which matching incidents cause no notifications. In patterns, * and ? are wildcards.

    An empty pattern matches everything.
    """

    starts_at: float
    ends_at: float
    run: str = ""
    rule: str = ""
    severity: str = ""
    who: str = ""
    comment: str = ""
    id: int = 0

    def fits(self, run: str, rule: str, severity: str, now: float) -> bool:
        """Return whether the silence applies at `now` to an incident with these properties."""
        return (
            self.starts_at <= now < self.ends_at
            and fnmatchcase(run, self.run or "*")
            and fnmatchcase(rule, self.rule or "*")
            and self.severity in ("", severity)
        )

    def quiets(self, incident: Incident, now: float) -> bool:
        """Return whether the silence applies to this incident at `now`.

        For a stall, the first rule of the incident also counts, because a user silences the stall and not
        its diagnosis, and the diagnosis can change. The end of a run is a separate incident.
        """
        rules = {incident.rule, incident.began_as[1]} if incident.kind == "stall" else {incident.rule}
        return any(self.fits(incident.run, rule, incident.severity, now) for rule in rules)


class OperatorActions:
    """Stores silences, acknowledgements, and notes in one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        migrate(engine)

    def silence(self, silence: Silence) -> int:
        """Store the silence and return its number."""
        values = {name: getattr(silence, name) for name in SILENCES.c.keys() if name != "id"}  # noqa: SIM118
        with writing(self._engine) as connection:
            connection.execute(delete(SILENCES).where(SILENCES.c.ends_at < silence.starts_at - _KEPT_SECONDS))
            key = connection.execute(insert(SILENCES).values(values)).inserted_primary_key
        return int(key[0]) if key is not None else 0

    def expire(self, silence: int, now: float) -> bool:
        """End the silence with this number. Return False if the silence has ended or does not exist."""
        with writing(self._engine) as connection:
            mine = and_(SILENCES.c.id == silence, SILENCES.c.ends_at > now)
            return connection.execute(update(SILENCES).where(mine).values(ends_at=now)).rowcount > 0

    def silences(self, now: float) -> list[Silence]:
        """Return the current and future silences."""
        query = select(SILENCES).where(SILENCES.c.ends_at > now).order_by(SILENCES.c.id)
        with self._engine.connect() as connection:
            return [Silence(**row._asdict()) for row in connection.execute(query)]

    def acknowledge(self, incident: str, who: str, now: float) -> bool:
        """Acknowledge the incident and withdraw its escalations. Return False for an unknown incident."""
        with writing(self._engine) as connection:
            opened = connection.scalar(select(INCIDENTS.c.opened_at).where(INCIDENTS.c.id == incident))
            if opened is None:
                return False
            known = and_(ACKNOWLEDGEMENTS.c.incident == incident, ACKNOWLEDGEMENTS.c.opened_at == opened)
            if connection.execute(select(ACKNOWLEDGEMENTS).where(known)).first() is None:
                connection.execute(
                    insert(ACKNOWLEDGEMENTS).values(incident=incident, opened_at=opened, at=now, who=who)
                )
                connection.execute(
                    insert(HISTORY).values(incident=incident, at=now, what="acknowledged", who=who, text="")
                )
            withdraw_escalations(connection, MESSAGES.c.about == incident, "acknowledged")
        return True

    def acknowledge_alerts(self, name: str) -> list[str]:
        """Acknowledge alerts that have no incident: withdraw their escalations.

        `name` is the ID of an alert or the name of a run. Return the IDs of the alerts.
        """
        mine = and_(
            or_(MESSAGES.c.about == name, MESSAGES.c.run == name), MESSAGES.c.about.startswith("alert/")
        )
        with writing(self._engine) as connection:
            return withdraw_escalations(connection, mine, "acknowledged")

    def is_acknowledged(self, incident: str) -> bool:
        """Return whether a user has acknowledged the incident since the incident was last opened."""
        same = and_(
            ACKNOWLEDGEMENTS.c.incident == incident,
            INCIDENTS.c.id == incident,
            ACKNOWLEDGEMENTS.c.opened_at == INCIDENTS.c.opened_at,
        )
        with self._engine.connect() as connection:
            return connection.execute(select(ACKNOWLEDGEMENTS.c.at).where(same)).first() is not None

    def note(self, incident: str, who: str, text: str, now: float) -> bool:
        """Store a note on the incident. Return False if the incident does not exist."""
        with writing(self._engine) as connection:
            known = select(INCIDENTS.c.id).where(INCIDENTS.c.id == incident)
            if connection.execute(known).first() is None:
                return False
            connection.execute(
                insert(HISTORY).values(incident=incident, at=now, what="note", who=who, text=text[:1000])
            )
        return True
