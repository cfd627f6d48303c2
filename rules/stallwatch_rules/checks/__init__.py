"""Provide the names of release 0.1 for one more minor version.

The checks are now in `stallwatch_lint`.
"""
