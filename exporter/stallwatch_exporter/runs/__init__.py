"""The records of a run: its folder and its log copies, and how they are replayed and pruned."""
