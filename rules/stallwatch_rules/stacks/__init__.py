"""Locate the ranks of a stalled run: read stacks from three origins, fold them, and name the odd rank."""
