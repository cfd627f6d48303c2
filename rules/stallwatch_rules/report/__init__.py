"""A diagnosis for people and programs: a terminal, an issue tracker, JSON."""
