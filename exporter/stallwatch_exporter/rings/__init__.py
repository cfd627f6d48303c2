"""The agent's end of the probe: reading the rings that ranks write."""
