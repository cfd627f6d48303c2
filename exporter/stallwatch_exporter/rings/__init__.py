"""Read the rings that the probes of ranks write."""
