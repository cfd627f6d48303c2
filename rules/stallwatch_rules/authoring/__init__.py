"""For authors of rule pages: check, and draft from a failure."""
