"""Provide the metrics, incidents, and log lines of runs to the pages."""
