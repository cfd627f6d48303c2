"""Define every database table as it is after the last migration."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table

METADATA = MetaData()

INCIDENTS = Table(
    "incidents",
    METADATA,
    Column("id", String(400), primary_key=True),
    Column("run", String(200), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("severity", String(20), nullable=False),
    Column("status", String(20), nullable=False),
    Column("episode", Integer, nullable=False),
    Column("opened_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("resolved_at", Float),
    Column("payload", JSON, nullable=False),  # the entire incident; the other columns are for queries
    Index("incidents_by_run", "run", "opened_at"),
)

#: Changes of incidents, and users' acknowledgements and notes. Each row contains one of them.
HISTORY = Table(
    "history",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("incident", String(400), nullable=False),
    Column("at", Float, nullable=False),
    Column("what", String(20), nullable=False),  # such as open, worse, acknowledged, or note
    Column("who", String(100), nullable=False),
    Column("text", String(1000), nullable=False),
    Index("history_by_incident", "incident", "id"),
)

#: Acknowledged incidents, which are not escalated.
ACKNOWLEDGEMENTS = Table(
    "acknowledgements",
    METADATA,
    Column("incident", String(400), primary_key=True),
    # After a run is deleted, a new run with the same name can have the same incident IDs.
    Column("opened_at", Float, primary_key=True),
    Column("at", Float, nullable=False),
    Column("who", String(100), nullable=False),
)

#: Periods during which no notifications are sent. "" matches everything, and "*" matches every run and rule.
SILENCES = Table(
    "silences",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("starts_at", Float, nullable=False),
    Column("ends_at", Float, nullable=False),
    Column("run", String(200), nullable=False),
    Column("rule", String(200), nullable=False),
    Column("severity", String(20), nullable=False),
    Column("who", String(100), nullable=False),
    Column("comment", String(1000), nullable=False),
)

#: Messages to chats. The table is also the log of deliveries.
MESSAGES = Table(
    "messages",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("channel", String(64), nullable=False),  # the URL's fingerprint, because the URL is a secret
    Column("name", String(300), nullable=False),  # the masked URL
    Column("run", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("notice", JSON, nullable=False),
    Column("state", String(12), nullable=False, default="waiting"),  # then sent, given-up, or withdrawn
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_at", Float, nullable=False, default=0.0),
    Column("claimed_until", Float, nullable=False, default=0.0),
    Column("sent_at", Float),
    Column("reason", String(1000), nullable=False, default=""),
    # The end of quiet hours, or the time of an escalation.
    Column("not_before", Float, nullable=False, server_default="0"),
    Column("tried_at", Float, nullable=False, server_default="0"),
    Column("claim", String(32), nullable=False, server_default=""),  # the claim of the sending process
    # The incident's ID. It is empty in messages that a relay sends immediately.
    Column("about", String(400), nullable=False, server_default=""),
    # 1 means that the message is sent only if the incident is not acknowledged.
    Column("escalation", Integer, nullable=False, server_default="0"),
    # Set if the message joins several notices: see ``grouping``.
    Column("group", JSON),
    # The notification keys that the message covers, to record its delivery in a different database.
    Column("keys", JSON),
    Index("messages_by_channel", "channel", "state", "id"),
    Index("messages_by_run", "run", "id"),
    Index("messages_by_incident", "about", "state"),
)

#: The notifications that each chat received, or that a message in `MESSAGES` covers.
NOTIFIED = Table(
    "told",  # the table's name in release 0.1
    METADATA,
    Column("channel", String(64), primary_key=True),
    Column("key", String(500), primary_key=True),  # such as "<incident ID>/open"
    Column("at", Float, nullable=False),
)

#: Pauses of each chat, and the number of discarded messages that have not been reported to the chat.
CHANNELS = Table(
    "channels",
    METADATA,
    Column("channel", String(64), primary_key=True),
    Column("paused_until", Float, nullable=False, default=0.0),  # from the chat's Retry-After
    Column("paused_at", Float, nullable=False, default=0.0),
    Column("expired", Integer, nullable=False, default=0),  # discarded messages, not reported to the chat
)

#: Times of requests to each chat, for the chat's rate limits. The rows are kept for a few minutes.
SENDS = Table(
    "sends",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("channel", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Index("sends_by_channel", "channel", "at"),
)

#: The newest report of each agent of a multi-host run: see ``cluster``. All times come from the server's
#: clock.
CLUSTER_REPORTS = Table(
    "cluster_reports",
    METADATA,
    Column("agent", String(200), primary_key=True),
    Column("key", String(64), nullable=False),  # the run's key
    Column("host_id", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),  # format version of `report`
    Column("updated_at", Float, nullable=False),
    Column("report", LargeBinary, nullable=False),  # binary JSON, independent of the database's encoding
    Column("refused", String(1000), nullable=False, server_default=""),  # reason for the refusal
    Index("cluster_reports_by_key", "key", "updated_at"),
)

#: The agent that merges the reports of a run, and its reply.
CLUSTER_RUNS = Table(
    "cluster_runs",
    METADATA,
    Column("key", String(64), primary_key=True),
    # The ID of the merging agent.
    Column("merger", String(200), nullable=False),
    # The server process of the merging agent, which holds the lock.
    Column("session", Integer, nullable=False),
    Column("merged_at", Float, nullable=False),  # updated about twice a second; 0 if the merging agent left
    Column("reply", LargeBinary),
)
