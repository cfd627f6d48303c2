"""Define the database of the alerts: tables, connections, and migrations to the current schema."""
