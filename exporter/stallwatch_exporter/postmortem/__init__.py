"""The diagnosis of a dead run: from its logs, and from the folder that Stallwatch kept of it."""
