"""Store the record of a run and copies of its log in a folder. Replay and prune stored runs."""
