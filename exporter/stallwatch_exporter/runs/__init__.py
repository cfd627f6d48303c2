"""Store the record of a run and copies of its log in a folder; replay and prune stored runs."""
