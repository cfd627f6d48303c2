"""The database of the alerts: its tables, how it is opened, and how an older one becomes a newer one."""
