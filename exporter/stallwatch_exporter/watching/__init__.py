"""The agent that watches a run: log lines in; metrics, findings, stalls and incidents out."""
