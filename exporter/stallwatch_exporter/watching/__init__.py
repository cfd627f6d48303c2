"""Watch a run with an agent: read log lines; produce metrics, findings, stalls and incidents."""
