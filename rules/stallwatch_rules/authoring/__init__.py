"""Tools for authors of rule pages: check pages, and draft them from a failure."""
