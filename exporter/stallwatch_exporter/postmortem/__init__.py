"""The diagnosis of a dead run: its logs, and what the folder that Stallwatch kept of it knows beside them."""
