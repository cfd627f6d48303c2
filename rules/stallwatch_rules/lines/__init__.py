"""Parse lines: determine the rank and time of each line, and remove prefixes."""
