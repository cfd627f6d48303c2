"""Collect the evidence at a stall: the stacks of each local rank, queried after the incident opened."""
