"""Names of release 0.1, for one minor version; the checks are in `stallwatch_lint`."""
