"""What can be said of a run before it starts: its configuration, its script, its versions. Pure functions."""
