"""The agent of a run that is watched: lines in, metrics, findings, stalls and incidents out."""
