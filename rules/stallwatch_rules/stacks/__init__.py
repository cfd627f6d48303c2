"""Locate the ranks of a stalled run: read their stacks from three origins, fold them, name the odd rank."""
