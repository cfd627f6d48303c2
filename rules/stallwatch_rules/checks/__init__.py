"""Names of release 0.1, kept for one minor version; the checks are in `stallwatch_lint`."""
