"""Keep the names of release 0.1 for one minor version; the checks moved to `stallwatch_lint`."""
