"""Locate the ranks of a stalled run: stacks of three origins in one form, folded, with the odd rank named."""
