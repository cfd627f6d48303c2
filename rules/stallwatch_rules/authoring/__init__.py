"""Provide tools for authors of rule pages: check pages, and draft pages for failures."""
