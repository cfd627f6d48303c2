"""The pages: runs, one run live, and the post-mortem of uploaded logs."""
