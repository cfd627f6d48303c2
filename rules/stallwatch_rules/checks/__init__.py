"""Provide the names from release 0.1 for one more minor version.

The checks moved to the package ``stallwatch_lint``.
"""
