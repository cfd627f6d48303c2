"""Watch a run with an agent that reads log lines and produces metrics, findings, stalls, and incidents."""
