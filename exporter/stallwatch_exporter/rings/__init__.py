"""The agent's end of the probe: the rings that ranks write, read beside them."""
