"""The database of the alerts: its tables, its connections, and the migration of older databases."""
