"""Rule pages: reading, validation and caching."""
