"""``stallwatch tail``: growing files followed through all that happens to log files."""
