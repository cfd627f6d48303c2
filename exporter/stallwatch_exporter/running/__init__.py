"""``stallwatch run``: the command, its output and signals passed through, and how it ended."""
