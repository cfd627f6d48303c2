"""Run a command for ``stallwatch run``: pass on output and signals, and determine how the command ended."""
