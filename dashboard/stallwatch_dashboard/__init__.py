"""Pages of the dashboard: all runs, one live run, and the post-mortem of uploaded logs."""
