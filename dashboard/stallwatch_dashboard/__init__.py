"""The dashboard, with pages for all runs, for one live run, and for the post-mortem of uploaded logs."""
