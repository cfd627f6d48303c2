"""The traces that a run leaves: its folder, its log copies, and how they are replayed and pruned."""
