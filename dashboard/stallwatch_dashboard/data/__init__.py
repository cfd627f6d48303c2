"""Where the numbers, incidents and log lines of runs come from."""
