"""Hooks that observe libraries. ``imports`` or ``stallwatch.integrations.loop`` installs the hooks."""
