"""Locate the cause of a stall: read the stacks of ranks, group them, and find the ranks to blame."""
