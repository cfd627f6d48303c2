"""The dashboard, which has pages for all runs, for one live run, and for post-mortems of uploaded logs."""
