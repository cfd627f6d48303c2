"""Provide tools that authors of rule pages use to check pages and to draft pages for failures."""
