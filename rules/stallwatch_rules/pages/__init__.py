"""Read, validate, and cache rule pages."""
