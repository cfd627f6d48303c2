"""Locate the cause of a stall: read the stacks of the ranks, group the ranks, and find the ranks to blame."""
