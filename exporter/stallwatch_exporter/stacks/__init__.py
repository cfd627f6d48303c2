"""Collect the evidence for a stall: take snapshots of the stacks of all local ranks."""
