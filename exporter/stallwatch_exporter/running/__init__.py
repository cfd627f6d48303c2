"""Run a command for ``stallwatch run``: pass on its output and signals, and find out how it ended."""
