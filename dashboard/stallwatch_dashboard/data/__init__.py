"""Provide the numbers, incidents, and log lines of runs to the pages."""
