"""Check whether checkpoint files are complete. The check uses bounded memory and unpickles nothing."""
