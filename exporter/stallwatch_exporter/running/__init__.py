"""Run a command for ``stallwatch run``: pass on its output and signals, and determine how it ended."""
