"""Store the record of a run in its folder, with log copies; replay and prune records."""
