"""Sources of the numbers, incidents, and log lines of runs."""
