"""Define the database of the alerts: tables, connections, and the migration of older databases."""
