"""Parse the lines of logs: determine the rank and the time of each line, and remove prefixes."""
