"""Provide the pages with the numbers, incidents, and log lines of runs."""
